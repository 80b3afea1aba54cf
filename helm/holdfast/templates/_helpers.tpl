{{/* Names.  Kubernetes allows 63 characters, and the longest that is put behind is a backend's with its number. */}}
{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component.  Called with (dict "root" $ "component" NAME). */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "component" NAME "name" FULL-NAME "annotations" MAP) */}}
{{- define "holdfast.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "holdfast.labels" . | nindent 2 }}
{{- with .annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* "true" on many machines, else nothing. */}}
{{- define "holdfast.distributed" -}}
{{- if or .Values.cassandra.contactPoints .Values.demo.cassandra -}}true{{- end -}}
{{- end -}}

{{/* "true" if a Job changes the tables in Cassandra before the pods start; the demo's Cassandra does not run yet then. */}}
{{- define "holdfast.migrates" -}}
{{- if and .Values.cassandra.contactPoints .Values.migration.enabled -}}true{{- end -}}
{{- end -}}

{{/* The component that clients call. */}}
{{- define "holdfast.door" -}}
{{- if include "holdfast.distributed" . -}}frontend{{- else -}}single{{- end -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.scheme" -}}
{{- if .Values.tls.existingSecret -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "holdfast.endpoint" -}}
{{- printf "%s://%s.%s.svc:%d" (include "holdfast.scheme" .) (include "holdfast.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}

{{/* The address that Kafka's clients are given for everything. */}}
{{- define "holdfast.kafkaAddress" -}}
{{- default (printf "%s.%s.svc:%d" (include "holdfast.fullname" .) .Release.Namespace (int .Values.kafka.port)) .Values.kafka.address -}}
{{- end -}}

{{- define "holdfast.rootSecret" -}}
{{- default (printf "%s-root-key" (include "holdfast.fullname" .)) .Values.rootKey.existingSecret -}}
{{- end -}}

{{- define "holdfast.masterSecret" -}}
{{- if .Values.masterKey.existingSecret -}}
{{- .Values.masterKey.existingSecret -}}
{{- else if .Values.masterKey.generate -}}
{{- printf "%s-master-key" (include "holdfast.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.clusterSecret" -}}
{{- default (printf "%s-cluster" (include "holdfast.fullname" .)) .Values.clusterSecret.existingSecret -}}
{{- end -}}

{{/* Of the certificate for the processes among themselves; nothing without one. */}}
{{- define "holdfast.clusterTlsSecret" -}}
{{- if .Values.clusterTls.certManager.enabled -}}
{{- printf "%s-cluster-tls" (include "holdfast.fullname" .) -}}
{{- else -}}
{{- .Values.clusterTls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* All metadata nodes, as the setting has them. */}}
{{- define "holdfast.metadataNodes" -}}
{{- $name := printf "%s-metadata" (include "holdfast.fullname" .) -}}
{{- $scheme := ternary "https" "http" (not (empty (include "holdfast.clusterTlsSecret" .))) -}}
{{- range $number := until (int .Values.metadata.replicas) -}}
{{- if $number }},{{ end -}}
{{- printf "%s-%d=%s://%s-%d.%s.%s.svc:9401" $name $number $scheme $name $number $name $.Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* A number of a values file as YAML and the settings write it: Helm has all of them as floats. */}}
{{- define "holdfast.plain" -}}
{{- if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "string" . -}}{{ . }}
{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* A bound of a histogram as Prometheus's library writes it: 1.0, not 1. */}}
{{- define "holdfast.bound" -}}
{{- $text := toString . -}}
{{- if contains "." $text -}}{{ $text }}{{- else -}}{{ $text }}.0{{- end -}}
{{- end -}}
