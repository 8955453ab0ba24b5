{{/* The Serve configuration: deploy/serve.yaml, which lies in files/ as a link, with what the values change. */}}

{{- define "planner.port" -}}
{{- (.Files.Get "files/serve.yaml" | fromYaml).http_options.port | int -}}
{{- end -}}

{{- define "planner.serveConfig" -}}
{{- $config := .Files.Get "files/serve.yaml" | fromYaml -}}
{{- range $application := $config.applications -}}
{{- $_ := set $application "args" (mergeOverwrite $application.args $.Values.settings) -}}
{{- range $deployment := $application.deployments -}}
{{- if hasKey $deployment "autoscaling_config" -}}
{{- $_ := set $deployment.autoscaling_config "min_replicas" (int $.Values.replicas.min) -}}
{{- $_ := set $deployment.autoscaling_config "max_replicas" (int $.Values.replicas.max) -}}
{{- $_ := set $deployment.autoscaling_config "target_ongoing_requests" (int $.Values.replicas.targetOngoingRequests) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
