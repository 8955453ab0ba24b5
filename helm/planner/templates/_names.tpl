{{/* Names, labels, images: what every object has. */}}

{{- define "planner.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* KubeRay admits 47 characters for a RayService and wants a DNS-1035 label; suffixes need room besides. */}}
{{- define "planner.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "planner.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "planner.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that stay the same over upgrades. Takes: root, component. */}}
{{- define "planner.selectorLabels" -}}
app.kubernetes.io/name: {{ include "planner.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object. Takes: root, component. */}}
{{- define "planner.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "planner.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: planner
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/* Takes: root, image. Images of planner have no tag of their own: theirs is the chart's. */}}
{{- define "planner.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "planner.imagePullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The address of the service within the cluster. */}}
{{- define "planner.server" -}}
{{- printf "http://%s.%s.svc:%s" (include "planner.fullname" .) .Release.Namespace (include "planner.port" .) -}}
{{- end -}}

{{/* The Secrets by which parts know each other: yours, or those of this chart. */}}
{{- define "planner.tokenSecret" -}}
{{- default (printf "%s-token" (include "planner.fullname" .)) .Values.token.existingSecret -}}
{{- end -}}

{{- define "planner.postgresqlSecret" -}}
{{- default (printf "%s-postgresql" (include "planner.fullname" .)) .Values.database.embedded.existingSecret -}}
{{- end -}}

{{- define "planner.redisSecret" -}}
{{- default (printf "%s-redis" (include "planner.fullname" .)) .Values.ray.faultTolerance.embedded.existingSecret -}}
{{- end -}}

{{/* A value of a Secret that this chart made before, else a new one; base64. Takes: root, name, key. */}}
{{- define "planner.keptOrNew" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- $kept := dig "data" .key "" ($secret | default dict) -}}
{{- $kept | default (randAlphaNum 40 | b64enc) -}}
{{- end -}}
