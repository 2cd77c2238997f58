{{- define "bursar.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag }}{{ end }}
{{- end -}}

{{- define "bursar.names" -}}
["--name", {{ printf "%s.%s.svc" .Release.Name .Release.Namespace | toJson }}{{ range .Values.names }}, "--name", {{ . | toJson }}{{ end }}]
{{- end -}}

{{- define "bursar.locked" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, privileged: false, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "bursar.mounts" -}}
[{name: state, mountPath: /var/lib/bursar}, {name: checkpoints, mountPath: /var/lib/bursar-checkpoints}, {name: cache, mountPath: /var/cache/bursar}, {name: tmp, mountPath: /tmp}]
{{- end -}}

{{- define "bursar.settings" -}}
[{{ range $name, $value := .Values.settings }}{name: {{ $name | toJson }}, value: {{ $value | toString | toJson }}}, {{ end }}{name: BURSAR_SERVER_CHECKPOINTS__PLACES, value: {{ .Values.checkpoints.places | toJson | toJson }}}, {name: BURSAR_STATE, value: /var/lib/bursar/state}]
{{- end -}}

{{- define "bursar.health" -}}
[bursar-server, health, --address, "127.0.0.1:8443", --ca, /var/lib/bursar/state/tls/ca.pem]
{{- end -}}

{{- define "bursar.alive" -}}
[bursar-server, health, --live, --address, "127.0.0.1:8443", --ca, /var/lib/bursar/state/tls/ca.pem]
{{- end -}}
