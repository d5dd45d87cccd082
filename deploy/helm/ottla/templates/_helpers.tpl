{{- define "ottla.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The domain of the pods. */}}
{{- define "ottla.domain" -}}
{{ include "ottla.name" . }}-brokers.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The list of brokers of a cluster without etcd. */}}
{{- define "ottla.brokers" -}}
{{- $context := . -}}
{{- $brokers := list -}}
{{- range $id := until (int .Values.replicas) -}}
{{- $brokers = append $brokers (printf "%d@INTERNAL://%s-%d.%s:9092" $id (include "ottla.name" $context) $id (include "ottla.domain" $context)) -}}
{{- end -}}
{{ join "," $brokers }}
{{- end }}
