{{/* What no schema of single values can see: values that do not go together. */}}
{{- define "planner.checks" -}}
{{- $ray := .Values.ray -}}
{{- if gt (len (include "planner.fullname" .)) 40 -}}
{{- fail "fullnameOverride: at most 40 characters, since KubeRay admits 47 for a RayService and more is added" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "planner.fullname" .)) -}}
{{- fail (printf "the name %q of the objects does not begin with a letter, as KubeRay wants it: set fullnameOverride" (include "planner.fullname" .)) -}}
{{- end -}}
{{- if and (eq .Values.database.type "external") (not .Values.database.external.existingSecret) -}}
{{- fail "database.external.existingSecret: name the Secret with the address of your database" -}}
{{- end -}}
{{- if eq .Values.database.type "sqlite" -}}
{{- if or $ray.workers.enabled $ray.validators -}}
{{- fail "database.type sqlite is a file on the head: set ray.workers.enabled to false and ray.validators to [], or take embedded or external" -}}
{{- end -}}
{{- if ne $ray.upgradeStrategy "None" -}}
{{- fail "database.type sqlite: set ray.upgradeStrategy to None, since the head of a second cluster cannot have the same volume" -}}
{{- end -}}
{{- end -}}
{{- if and (not $ray.workers.enabled) (lt ($ray.head.cpus | int) 1) -}}
{{- fail "nobody has CPUs for the planner: set ray.workers.enabled to true, or ray.head.cpus to 2 or more" -}}
{{- end -}}
{{- if and (eq $ray.faultTolerance.type "external") (not $ray.faultTolerance.external.address) -}}
{{- fail "ray.faultTolerance.external.address: name your Redis, HOST:PORT" -}}
{{- end -}}
{{- range $group := concat (list $ray.workers) $ray.validators -}}
{{- if gt (default 1 $group.min | int) (default 1 $group.max | int) -}}
{{- fail (printf "ray: min %v of %s is above max %v" $group.min (default "workers" $group.name) $group.max) -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.replicas.min) (int .Values.replicas.max) -}}
{{- fail "replicas: min is above max" -}}
{{- end -}}
{{- if .Values.webhook.enabled -}}
{{- $waits := addf (default 10 .Values.webhook.policy.wait_seconds) (default 3 .Values.webhook.policy.timeout_seconds) -}}
{{- if ge $waits (float64 .Values.webhook.timeoutSeconds) -}}
{{- fail (printf "webhook.timeoutSeconds: %v is not above wait_seconds and timeout_seconds of its policy, %v together" .Values.webhook.timeoutSeconds $waits) -}}
{{- end -}}
{{- if and (eq (default "admit" .Values.webhook.policy.unplanned) "refuse") .Values.webhook.onlyAnnotated -}}
{{- fail "webhook.policy.unplanned refuse: set webhook.onlyAnnotated to false, else jobs without a spec are never sent" -}}
{{- end -}}
{{- if eq .Values.webhook.certificate.source "given" -}}
{{- if not (and .Values.webhook.certificate.existingSecret .Values.webhook.certificate.caBundle) -}}
{{- fail "webhook.certificate.source given: set existingSecret and caBundle" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.webhook.clientCertificate.required (not .Values.webhook.clientCertificate.caConfigMap) -}}
{{- fail "webhook.clientCertificate.caConfigMap: name the ConfigMap with the CA of the API server's client certificate, or set webhook.clientCertificate.required: false where the API server cannot show one (docs/admission.md); releases without either answered anybody" -}}
{{- end -}}
{{- end -}}
{{- end -}}
