{{/* Ray's containers: one for the head, the workers and the validators. */}}

{{/* What planner and Ray are told. The database's password and the token's digest come from Secrets. */}}
{{- define "planner.rayEnv" -}}
- {name: HOME, value: /tmp}
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: {{ ternary "1" "0" .Values.ray.haProxy | quote }}}
{{- include "planner.databaseEnv" . }}
{{- if .Values.token.enabled }}
- name: PLANNER_TOKEN_SHA256
  valueFrom:
    secretKeyRef: {name: {{ include "planner.tokenSecret" . }}, key: token-sha256}
{{- end }}
{{- with .Values.ray.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "planner.databaseEnv" -}}
{{- if eq .Values.database.type "embedded" }}
- name: PLANNER_DATABASE_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "planner.postgresqlSecret" . }}, key: password}
- name: PLANNER_DATABASE
  value: postgresql://planner:$(PLANNER_DATABASE_PASSWORD)@{{ include "planner.fullname" . }}-postgresql:5432/planner
{{- else if eq .Values.database.type "external" }}
- name: PLANNER_DATABASE
  valueFrom:
    secretKeyRef: {name: {{ .Values.database.external.existingSecret }}, key: {{ .Values.database.external.key }}}
{{- else }}
- {name: PLANNER_DATABASE, value: "sqlite:////var/lib/planner/planner.sqlite"}
{{- end }}
{{- end -}}

{{/* The probes that KubeRay would add want bash and wget in the image; these ask the same over HTTP. Raylets outlive
     a head that is away for a while: so long has their liveness to wait (KubeRay's own: 120 failures). */}}
{{- define "planner.rayLiveness" -}}
livenessProbe:
  httpGet: {path: /api/healthz, port: agent}
  initialDelaySeconds: 30
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 120
{{- end -}}

{{/* Takes: root, component, image, values (resources and placement), gpus, resources, mounts, volumes. */}}
{{- define "planner.rayPod" -}}
{{- $head := eq .component "head" -}}
metadata:
  labels:
    {{- include "planner.selectorLabels" . | nindent 4 }}
  {{- with .values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if and $head .root.Values.ray.autoscaling.enabled }}
  serviceAccountName: {{ include "planner.fullname" .root }}-head
  automountServiceAccountToken: true
  {{- else }}
  serviceAccountName: {{ include "planner.fullname" .root }}-worker
  automountServiceAccountToken: false
  {{- end }}
  enableServiceLinks: false
  {{- with include "planner.imagePullSecrets" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- include "planner.podSecurity" .root.Values.userId | nindent 2 }}
  {{- with include "planner.placement" .values | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if not $head }}
  {{- include "planner.spread" . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ ternary "ray-head" "ray-worker" $head }}
      image: {{ include "planner.image" (dict "root" .root "image" .image) }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      env:
        {{- include "planner.rayEnv" .root | nindent 8 }}
      ports:
        {{- if $head }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        {{- end }}
        - {name: metrics, containerPort: 8080}
        - {name: agent, containerPort: 52365}
        - {name: serve, containerPort: {{ include "planner.port" .root }}}
      {{- include "planner.rayLiveness" . | nindent 6 }}
      readinessProbe:
        {{- if $head }}
        httpGet: {path: /api/healthz, port: agent}
        {{- else }}
        httpGet: {path: /-/healthz, port: serve}
        {{- end }}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ ternary 10 2 $head }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      {{- include "planner.containerSecurity" . | nindent 6 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if .sqlite }}
        - {name: database, mountPath: /var/lib/planner}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .sqlite }}
    - name: database
      persistentVolumeClaim: {claimName: {{ include "planner.fullname" .root }}-sqlite}
    {{- end }}
{{- end -}}
