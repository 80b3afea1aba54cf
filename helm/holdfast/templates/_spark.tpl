{{- /* Spark's jobs by Kubeflow's operator.  It makes the driver's pod of a template, as spark-submit does, and the driver */}}
{{- /* those of its executors; containers have the names by which the operator knows them. */}}

{{- /* A container of Spark: (dict "root" $ "kind" "driver" or "executor" "secret" NAME "budgets" NAME). */}}
{{- define "holdfast.sparkContainer" -}}
- name: spark-kubernetes-{{ .kind }}
  env:
    - {name: HOME, value: /tmp}
    {{- if eq .kind "driver" }}
    - {name: HOLDFAST_USAGE_LAKE, value: {{ .root.Values.usage.lake | quote }}}
    {{- end }}
  {{- with compact (list .root.Values.usage.existingSecret .secret) }}
  envFrom:
    {{- range . }}
    - secretRef: {name: {{ . }}}
    {{- end }}
  {{- end }}
  securityContext: {{- include "holdfast.containerSecurity" .root | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- if eq .kind "driver" }}
    {{- if .root.Values.billing.prices.existingConfigMap }}
    - {name: prices, mountPath: /etc/holdfast/prices, readOnly: true}
    {{- end }}
    {{- if .budgets }}
    - {name: budgets, mountPath: /etc/holdfast/budgets, readOnly: true}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "holdfast.sparkTemplate" -}}
metadata:
  labels: {{- include "holdfast.labels" . | nindent 4 }}
  {{- with .root.Values.billing.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "holdfast.podSpec" . | nindent 2 }}
  containers:
    {{- include "holdfast.sparkContainer" . | nindent 4 }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- if eq .kind "driver" }}
    {{- with .root.Values.billing.prices.existingConfigMap }}
    - {name: prices, configMap: {name: {{ . }}}}
    {{- end }}
    {{- with .budgets }}
    - {name: budgets, configMap: {name: {{ . }}}}
    {{- end }}
    {{- end }}
{{- end -}}

{{- /* The rights of a driver, which makes its executors: (dict "root" $ "component" NAME "values" DICT "name" NAME). */}}
{{- define "holdfast.sparkRights" -}}
apiVersion: v1
kind: ServiceAccount
metadata: {{- include "holdfast.metadata" (merge (dict "annotations" .root.Values.serviceAccount.annotations) .) | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{- include "holdfast.metadata" . | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [pods, services, configmaps, persistentvolumeclaims]
    verbs: [create, get, list, watch, update, patch, delete, deletecollection]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{- include "holdfast.metadata" . | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .name }}}
subjects:
  - {kind: ServiceAccount, name: {{ .name }}, namespace: {{ .root.Release.Namespace }}}
{{- end -}}

{{- /* The spec of a SparkApplication: (dict "part" PART "args" JSON "restart" DICT "memory" SIZE "operator" DICT */}}
{{- /* "secret" NAME "budgets" NAME).  The executors' component is the driver's with -executor. */}}
{{- define "holdfast.sparkApplication" -}}
{{- $root := .part.root }}
{{- $billing := $root.Values.billing }}
{{- $driver := merge (dict "kind" "driver" "account" .part.name "secret" .secret "budgets" .budgets) .part }}
{{- $executor := merge (dict "kind" "executor" "component" (printf "%s-executor" .part.component)) .part -}}
type: Python
mode: cluster
pythonVersion: "3"
sparkVersion: "4.3.0"
image: {{ $billing.image.repository }}:{{ default $root.Chart.AppVersion $billing.image.tag }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
mainApplicationFile: local:///venv/jobs.py
arguments: {{ .args }}
restartPolicy: {{ toJson .restart }}
sparkConf:
  spark.blockManager.port: "7079" {{- /* with the driver's two the only ones, which the network policies name */}}
  spark.driver.port: "7078"
  spark.log.level: ERROR
  spark.ui.enabled: "false"
driver:
  cores: 1
  coreRequest: 250m
  memory: {{ .memory }}
  memoryOverhead: 1g
  serviceAccount: {{ .part.name }}
  template: {{- include "holdfast.sparkTemplate" $driver | nindent 4 }}
executor:
  instances: {{ .operator.executors | int }}
  cores: {{ .operator.cores | int }}
  memory: {{ .operator.memory }}
  memoryOverhead: 512m
  template: {{- include "holdfast.sparkTemplate" $executor | nindent 4 }}
{{- end -}}
