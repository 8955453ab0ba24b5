{{/* What every pod and every container of the chart has: nobody's root, nothing to write on but what is given. */}}

{{/* Takes: the user's id. */}}
{{- define "planner.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "planner.containerSecurity" -}}
securityContext:
  {{- include "planner.containerSecurityFields" . | nindent 2 }}
{{- end -}}

{{- define "planner.containerSecurityFields" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where a pod runs. Takes: the part's values. */}}
{{- define "planner.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Pods of one part on nodes of their own, where there are enough. Takes: root, component. */}}
{{- define "planner.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "planner.selectorLabels" . | nindent 8 }}
{{- end -}}

{{/* The policy file of a hook. Takes: root, policy. */}}
{{- define "planner.policyFile" -}}
[admission]
server = {{ include "planner.server" .root }}
{{- if .root.Values.token.enabled }}
token_file = /etc/planner/token/token
{{- end }}
{{- range $name, $value := .policy }}
{{ $name }} = {{ $value }}
{{- end }}
{{- end -}}

{{/* What a hook mounts: its policy, and the token it sends to the service. Takes: root, config. */}}
{{- define "planner.hookVolumes" -}}
- name: policy
  configMap: {name: {{ .config }}}
{{- if .root.Values.token.enabled }}
- name: token
  secret:
    secretName: {{ include "planner.tokenSecret" .root }}
    defaultMode: 0440
    items: [{key: token, path: token}]
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{- define "planner.hookMounts" -}}
- {name: policy, mountPath: /etc/planner/policy, readOnly: true}
{{- if .Values.token.enabled }}
- {name: token, mountPath: /etc/planner/token, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end -}}
