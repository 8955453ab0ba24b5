{{/* Rules of network policies that several parts have. */}}

{{- define "planner.toDns" -}}
- to: [{namespaceSelector: {}}]
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}

{{- define "planner.toKubernetes" -}}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Ray's pods of this release, the job of KubeRay's that cleans Redis up included. */}}
{{- define "planner.rayPods" -}}
matchLabels:
  app.kubernetes.io/name: {{ include "planner.name" . }}
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - {key: ray.io/node-type, operator: Exists}
{{- end -}}

{{/* The port of an address HOST:PORT, rediss://HOST:PORT. */}}
{{- define "planner.portOf" -}}
{{- regexFind "[0-9]+$" . | default "6379" -}}
{{- end -}}
