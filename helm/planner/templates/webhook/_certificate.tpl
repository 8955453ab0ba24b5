{{- define "planner.certificateSecret" -}}
{{- if eq .Values.webhook.certificate.source "given" -}}
{{- .Values.webhook.certificate.existingSecret -}}
{{- else -}}
{{- include "planner.fullname" . }}-webhook-certificate
{{- end -}}
{{- end -}}
