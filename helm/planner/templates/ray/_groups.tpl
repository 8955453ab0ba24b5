{{/* GPUs are asked for as limits; requests follow them. Takes: a group of validators. */}}
{{- define "planner.gpuResources" -}}
{{- $gpus := dict "nvidia.com/gpu" (default 1 .gpus | toString) -}}
{{- $given := default dict .resources -}}
{{- $requests := merge (dict) (default dict $given.requests) (dict "cpu" "2" "memory" "16Gi") -}}
{{- $limits := merge (dict) $gpus (default dict $given.limits) (dict "memory" "48Gi") -}}
{{- toYaml (dict "requests" (merge $requests $gpus) "limits" $limits) -}}
{{- end -}}

{{- define "planner.faultTolerance" -}}
{{- $kept := .Values.ray.faultTolerance -}}
{{- if eq $kept.type "embedded" }}
gcsFaultToleranceOptions:
  redisAddress: {{ include "planner.fullname" . }}-redis:6379
  redisPassword:
    valueFrom:
      secretKeyRef: {name: {{ include "planner.redisSecret" . }}, key: password}
{{- else if eq $kept.type "external" }}
gcsFaultToleranceOptions:
  redisAddress: {{ $kept.external.address }}
  {{- with $kept.external.existingSecret }}
  redisPassword:
    valueFrom:
      secretKeyRef: {name: {{ . }}, key: {{ $kept.external.key }}}
  {{- end }}
{{- end }}
{{- end -}}
