{{- define "posenc.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "posenc.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "posenc.labels" -}}
{{ include "posenc.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "posenc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "posenc.claim" -}}
{{ .Values.cache.existingClaim | default (printf "%s-cache" (include "posenc.fullname" .)) }}
{{- end -}}

{{/* The namespace's and the service's name are labels that the Prometheus operator adds. */}}
{{- define "posenc.series" -}}
namespace={{ .Release.Namespace | quote }},service={{ include "posenc.fullname" . | quote }}
{{- end -}}
