{{/* Common parts of all pods: an unprivileged user, no token, no variables of services. */}}
{{/* (dict "root" $ "component" NAME "values" VALUES-OF-THE-COMPONENT); "early" true: what runs before the service account is there; */}}
{{/* "account" NAME: service account of the pods that call Kubernetes; all others have none */}}
{{- define "holdfast.podSpec" -}}
{{- if not .early }}
serviceAccountName: {{ default (include "holdfast.fullname" .root) .account }}
{{- end }}
automountServiceAccountToken: {{ not (empty .account) }}
enableServiceLinks: false {{- /* HOLDFAST_PORT=tcp://… would be taken for a setting */}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if hasKey .values "topologySpreadConstraints" }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
{{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "holdfast.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "holdfast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "holdfast.podMetadata" -}}
labels: {{- include "holdfast.labels" . | nindent 2 }}
annotations:
  holdfast/configuration: {{ include "holdfast.configuration" .root | sha256sum }}
{{- with .values.podAnnotations }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The settings file: queues and topics that are declared.  SQS's and SNS's attributes are text, and JSON's text is
     TOML's. */}}
{{- define "holdfast.configuration" -}}
{{- range .Values.queues }}
[[queues]]
name = {{ toJson .name }}
{{- include "holdfast.declaredAttributes" (dict "table" "queues" "declared" .) }}
{{ end }}
{{- range .Values.topics }}
[[topics]]
name = {{ toJson .name }}
{{- include "holdfast.declaredAttributes" (dict "table" "topics" "declared" .) }}
{{- range .subscriptions }}

[[topics.subscriptions]]
queue = {{ toJson .queue }}
{{- include "holdfast.declaredAttributes" (dict "table" "topics.subscriptions" "declared" .) }}
{{- end }}
{{ end }}
{{- end -}}

{{/* Attributes and tags of a declaration: (dict "table" NAME "declared" DECLARATION) */}}
{{- define "holdfast.declaredAttributes" -}}
{{- with .declared.attributes }}

[{{ $.table }}.attributes]
{{- range $name, $value := . }}
{{ $name }} = {{ include "holdfast.plain" $value | toJson }}
{{- end }}
{{- end }}
{{- with .declared.tags }}

[{{ $.table }}.tags]
{{- range $name, $value := . }}
{{ toJson $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables that all processes of the service have. */}}
{{- define "holdfast.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if or .Values.queues .Values.topics }}
- name: HOLDFAST_CONFIG
  value: /etc/holdfast/file/holdfast.toml
{{- end }}
{{ include "holdfast.settingsEnv" . }}
{{- if include "holdfast.distributed" . }}
{{ include "holdfast.clusterEnv" . }}
{{ include "holdfast.cassandraEnv" . }}
{{- end }}
{{- end -}}

{{- define "holdfast.settingsEnv" -}}
{{- range $name, $value := .Values.settings }}
- name: HOLDFAST_{{ upper $name }}
  value: {{ include "holdfast.plain" $value | quote }}
{{- end }}
{{- end -}}

{{/* … and those on many machines. */}}
{{- define "holdfast.clusterEnv" -}}
- name: HOLDFAST_CLUSTER_SECRET_FILE
  value: /etc/holdfast/cluster/cluster-secret
{{- if include "holdfast.clusterTlsSecret" . }}
- name: HOLDFAST_CLUSTER_TLS_CA
  value: /etc/holdfast/cluster-tls/ca.crt
- name: HOLDFAST_CLUSTER_TLS_CERT
  value: /etc/holdfast/cluster-tls/tls.crt
- name: HOLDFAST_CLUSTER_TLS_KEY
  value: /etc/holdfast/cluster-tls/tls.key
{{- end }}
- name: HOLDFAST_SCHEMA_MIGRATION
  value: {{ ternary "wait" "start" (not (empty (include "holdfast.migrates" .))) }}
{{- if .Values.metadata.replicas }}
- name: HOLDFAST_METADATA_NODES
  value: {{ include "holdfast.metadataNodes" . }}
- name: HOLDFAST_METADATA_NODES_VERSION
  value: {{ .Values.metadata.listVersion | int | quote }}
{{- end }}
{{- if or .Values.redis.url .Values.redis.existingSecret .Values.demo.redis }}
{{- range list "METADATA_INVALIDATION" "RATE_LIMIT_STORAGE" }}
- name: HOLDFAST_{{ . }}
{{- if $.Values.redis.existingSecret }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.redis.existingSecret }}, key: url}}
{{- else if $.Values.demo.redis }}
  value: redis://{{ include "holdfast.fullname" $ }}-redis:6379/0
{{- else }}
  value: {{ $.Values.redis.url }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* … and of these what says where Cassandra is. */}}
{{- define "holdfast.cassandraEnv" -}}
- name: HOLDFAST_CASSANDRA
  value: {{ ternary (printf "%s-cassandra" (include "holdfast.fullname" .)) (join "," .Values.cassandra.contactPoints) .Values.demo.cassandra }}
- name: HOLDFAST_CASSANDRA_PORT
  value: {{ .Values.cassandra.port | int | quote }}
- name: HOLDFAST_CASSANDRA_KEYSPACE
  value: {{ .Values.cassandra.keyspace }}
- name: HOLDFAST_CASSANDRA_REPLICATION
  value: {{ .Values.cassandra.replication | quote }}
- name: HOLDFAST_CASSANDRA_STRICT
  value: {{ .Values.cassandra.strict | quote }}
{{- with .Values.cassandra.scope }}
- name: HOLDFAST_CASSANDRA_SCOPE
  value: {{ . }}
{{- end }}
{{- with .Values.cassandra.datacenter }}
- name: HOLDFAST_CASSANDRA_DATACENTER
  value: {{ . }}
{{- end }}
{{- with .Values.cassandra.existingSecret }}
- name: HOLDFAST_CASSANDRA_USER
  valueFrom: {secretKeyRef: {name: {{ . }}, key: username}}
- name: HOLDFAST_CASSANDRA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
{{- end }}
{{- if .Values.cassandra.tls.existingSecret }}
- name: HOLDFAST_CASSANDRA_TLS_CA
  value: /etc/holdfast/cassandra-tls/ca.crt
{{- if .Values.cassandra.tls.clientCertificate }}
- name: HOLDFAST_CASSANDRA_TLS_CERT
  value: /etc/holdfast/cassandra-tls/tls.crt
- name: HOLDFAST_CASSANDRA_TLS_KEY
  value: /etc/holdfast/cassandra-tls/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables of what clients call: the keys, TLS, and usage. */}}
{{- define "holdfast.doorEnv" -}}
- name: HOLDFAST_HOST
  value: 0.0.0.0
- name: HOLDFAST_PORT
  value: "9324"
- name: HOLDFAST_DATA
  value: /var/lib/holdfast/data
- name: HOLDFAST_ROOT_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ include "holdfast.rootSecret" . }}, key: access-key-id}}
- name: HOLDFAST_ROOT_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "holdfast.rootSecret" . }}, key: secret-access-key}}
{{- with include "holdfast.masterSecret" . }}
- name: HOLDFAST_MASTER_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: master-key}}
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: HOLDFAST_TLS_CERT
  value: /etc/holdfast/tls/tls.crt
- name: HOLDFAST_TLS_KEY
  value: /etc/holdfast/tls/tls.key
{{- end }}
{{- if .Values.kafka.enabled }}
- name: HOLDFAST_KAFKA_PORT
  value: "9092"
- name: HOLDFAST_KAFKA_ADDRESS
  value: {{ include "holdfast.kafkaAddress" . | quote }}
- name: HOLDFAST_KAFKA_PARTITIONS
  value: {{ .Values.kafka.partitions | int | quote }}
- name: HOLDFAST_KAFKA_AUTO_CREATE_TOPICS
  value: {{ .Values.kafka.autoCreateTopics | quote }}
{{- end }}
{{- if .Values.usage.enabled }}
- name: HOLDFAST_USAGE
  value: "on"
{{- with .Values.usage.lake }}
- name: HOLDFAST_USAGE_LAKE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where all of these files are; for what clients call with its certificate: (dict "root" $ "door" BOOL) */}}
{{- define "holdfast.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if or .root.Values.queues .root.Values.topics }}
- {name: file, mountPath: /etc/holdfast/file, readOnly: true}
{{- end }}
{{- if include "holdfast.distributed" .root }}
- {name: cluster, mountPath: /etc/holdfast/cluster, readOnly: true}
{{- if include "holdfast.clusterTlsSecret" .root }}
- {name: cluster-tls, mountPath: /etc/holdfast/cluster-tls, readOnly: true}
{{- end }}
{{- if .root.Values.cassandra.tls.existingSecret }}
- {name: cassandra-tls, mountPath: /etc/holdfast/cassandra-tls, readOnly: true}
{{- end }}
{{- end }}
{{- if and .door .root.Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/holdfast/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "holdfast.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if or .root.Values.queues .root.Values.topics }}
- {name: file, configMap: {name: {{ include "holdfast.fullname" .root }}}}
{{- end }}
{{- if include "holdfast.distributed" .root }}
- {name: cluster, secret: {secretName: {{ include "holdfast.clusterSecret" .root }}, defaultMode: 0440}}
{{- with include "holdfast.clusterTlsSecret" .root }}
- {name: cluster-tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- with .root.Values.cassandra.tls.existingSecret }}
- {name: cassandra-tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- if .door }}
{{- with .root.Values.tls.existingSecret }}
- {name: tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Health checks of the service port.  A start may take as long as reading the journal, without being ended. */}}
{{- define "holdfast.doorProbes" -}}
startupProbe:
  httpGet: {path: /health/live, port: clients, scheme: {{ include "holdfast.scheme" . | upper }}}
  periodSeconds: 2
  failureThreshold: 43200
readinessProbe:
  httpGet: {path: /health/ready, port: clients, scheme: {{ include "holdfast.scheme" . | upper }}}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /health/live, port: clients, scheme: {{ include "holdfast.scheme" . | upper }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* Of the others, which answer from their start, also while they read a journal. */}}
{{- define "holdfast.healthProbes" -}}
startupProbe:
  httpGet: {path: /health/live, port: health}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /health/ready, port: health}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /health/live, port: health}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* Seconds that calls under way get at the end. */}}
{{- define "holdfast.drainSeconds" -}}
{{- ceil (default 30 .Values.settings.drain_seconds) | int -}}
{{- end -}}

{{/* Pods of a component that nodes may be drained of: (dict "root" $ "component" NAME "maxUnavailable" NUMBER) */}}
{{- define "holdfast.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "holdfast.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels: {{- include "holdfast.selector" . | nindent 6 }}
{{- end -}}

{{/* Stable names for the pods of a StatefulSet, also before they are ready: they wait for each other.  "foreign" true: not of Holdfast. */}}
{{- define "holdfast.headless" -}}
apiVersion: v1
kind: Service
metadata: {{- include "holdfast.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "holdfast.selector" . | nindent 4 }}
  ports:
    {{- with .port }}
    - {name: {{ .name }}, port: {{ .number }}, targetPort: {{ .name }}}
    {{- end }}
    {{- if not .foreign }}
    - {name: health, port: 9480, targetPort: health}
    {{- end }}
{{- end -}}
