{{/* The spec of a pod that runs a command of Ebbtide with the settings of the service: `run`, or for helm test `doctor`. */}}
{{- define "ebbtide.pod" -}}
serviceAccountName: {{ include "ebbtide.serviceAccountName" . }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with default (ternary "" "ClusterFirstWithHostNet" (not .Values.hostNetwork)) .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: ebbtide
    image: {{ include "ebbtide.image" . | quote }}
    {{- with .Values.image.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    args:
      - {{ .command }}
      {{- range $key, $value := pick (default dict .Values.settings) "ignoreHook" "keepCordonWhile" }}
      {{- if and (kindIs "slice" $value) (not $value) }}
      # An empty variable counts as unset, so this needs the flag.
      - --{{ $key | kebabcase }}=
      {{- end }}
      {{- end }}
      {{- with .Values.extraArgs }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    env:
      {{- with .Values.queueUrl }}
      - name: EBBTIDE_QUEUE_URL
        value: {{ . | quote }}
      {{- end }}
      {{- with include "ebbtide.region" . }}
      - name: AWS_REGION
        value: {{ . | quote }}
      {{- end }}
      - name: EBBTIDE_ADMIN_ADDRESS
        value: {{ printf "%s:%v" .Values.admin.address .Values.admin.port | quote }}
      - name: EBBTIDE_STATUS_ADDRESS
        value: {{ include "ebbtide.statusAddress" . | quote }}
      {{- if eq "yes" (include "ebbtide.statusShared" .) }}
      - name: EBBTIDE_STATUS_PEERS
        value: {{ printf "%s-status.%s.svc:%v" (include "ebbtide.fullname" .) .Release.Namespace .Values.status.port | quote }}
      {{- end }}
      # The pod's identity, so that Ebbtide evicts its own pod last.
      - name: EBBTIDE_POD_NAME
        valueFrom:
          fieldRef:
            fieldPath: metadata.name
      - name: EBBTIDE_POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      {{- if include "ebbtide.hasSource" (list . "nodes") }}
      - name: EBBTIDE_NODES_LEASE
        value: {{ include "ebbtide.nodesLease" . | quote }}
      {{- end }}
      {{- with include "ebbtide.settings" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "ebbtide.notifications" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "ebbtide.traces" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with .Values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with .Values.envFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if eq "run" .command }}
    ports:
      - name: metrics
        containerPort: {{ .Values.admin.port }}
        protocol: TCP
      {{- if (.Values.status).enabled }}
      - name: status
        containerPort: {{ .Values.status.port }}
        protocol: TCP
      {{- end }}
    livenessProbe:
      httpGet:
        path: /healthz
        port: metrics
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet:
        path: /readyz
        port: metrics
      periodSeconds: 5
      timeoutSeconds: 5
    {{- end }}
    {{- with .Values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if or .Values.extraVolumeMounts (include "ebbtide.notificationTemplate" .) }}
    volumeMounts:
      {{- if include "ebbtide.notificationTemplate" . }}
      - name: notifications
        mountPath: /notifications
        readOnly: true
      {{- end }}
      {{- with .Values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "ebbtide.tolerations" . }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
affinity:
  {{- with .Values.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  # A preference alone: no pod stays Pending where all nodes are spot capacity.
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        preference:
          matchExpressions:
            - key: karpenter.sh/capacity-type
              operator: NotIn
              values: [spot]
            - key: eks.amazonaws.com/capacityType
              operator: NotIn
              values: [SPOT]
            - key: node.kubernetes.io/lifecycle
              operator: NotIn
              values: [spot]
  {{- end }}
{{- if kindIs "slice" .Values.topologySpreadConstraints }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else }}
# On a single node or zone the second replica runs next to the first, instead of staying Pending.
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    # Pods of an older version are about to end and don't count.
    matchLabelKeys:
      - pod-template-hash
    labelSelector:
      matchLabels:
        {{- include "ebbtide.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- if or .Values.extraVolumes (include "ebbtide.notificationTemplate" .) }}
volumes:
  {{- if include "ebbtide.notificationTemplate" . }}
  - name: notifications
    configMap:
      name: {{ include "ebbtide.fullname" . }}-notifications
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
