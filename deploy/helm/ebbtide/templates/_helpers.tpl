{{/* helm reads an empty value as null, without its default. `(.Values.section).key` is then null, too, which equals the defaults of the
sections read so. validate.yaml refuses what must not be empty. */}}

{{/* The chart's name. */}}
{{- define "ebbtide.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The full name of objects: release and chart, or the release alone if its name contains the chart's. */}}
{{- define "ebbtide.fullname" -}}
{{- $name := include "ebbtide.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ebbtide.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ebbtide.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The name label of the pod of helm test: another than the service's, so that neither the Service nor the budget selects that pod. */}}
{{- define "ebbtide.doctor" -}}
{{- printf "%s-doctor" (include "ebbtide.name" . | trunc 56) }}
{{- end }}

{{- define "ebbtide.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "ebbtide.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The name of the policy for kubelets. */}}
{{- define "ebbtide.kubeletPolicy" -}}
{{- printf "%s-kubelets" (include "ebbtide.fullname" . | trunc 54 | trimSuffix "-") }}
{{- end }}

{{/* The name of the policy for all other clients that may write Nodes. */}}
{{- define "ebbtide.marksPolicy" -}}
{{- printf "%s-marks" (include "ebbtide.fullname" . | trunc 57 | trimSuffix "-") }}
{{- end }}

{{/* The name of the policy for the service's own writes of Nodes; that for pods has -pods more. */}}
{{- define "ebbtide.servicePolicy" -}}
{{- printf "%s-service" (include "ebbtide.fullname" . | trunc 50 | trimSuffix "-") }}
{{- end }}

{{/* yes if the API server has admission policies. helm template knows only a version, which has them from 1.30 on. */}}
{{- define "ebbtide.knowsPolicies" -}}
{{- $knows := semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
{{- if .Capabilities.APIVersions.Has "v1/Node" }}
{{- $knows = .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- end }}
{{- if $knows }}yes{{ end }}
{{- end }}

{{/* yes if there is the policy for kubelets. */}}
{{- define "ebbtide.hasKubeletPolicy" -}}
{{- if and .Values.kubeletPolicy (include "ebbtide.knowsPolicies" .) }}yes{{ end }}
{{- end }}

{{/* yes if there is the policy for the service itself. */}}
{{- define "ebbtide.hasServicePolicy" -}}
{{- if and .Values.servicePolicy (include "ebbtide.knowsPolicies" .) }}yes{{ end }}
{{- end }}

{{/* The taints that the service adds, as kubectl writes them: a list in CEL. */}}
{{- define "ebbtide.celTaints" -}}
{{- $taints := list }}
{{- range (.Values.settings).taint }}
{{- $taints = append $taints (replace "=:" ":" . | squote) }}
{{- end }}
{{- if or (.Values.settings).outOfServiceTaint (.Values.settings).collectNodes }}
{{- $taints = append $taints (squote "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute") }}
{{- end }}
{{- printf "[%s]" (join ", " $taints) }}
{{- end }}

{{/* The keys of the taints that the service removes, also those that it has added with other settings: a list in CEL. */}}
{{- define "ebbtide.celTaintKeys" -}}
{{- $keys := list (squote "node.kubernetes.io/out-of-service") }}
{{- range (.Values.settings).taint }}
{{- $keys = append $keys (regexFind "^[^=:]+" . | squote) }}
{{- end }}
{{- range (.Values.settings).formerTaint }}
{{- $keys = append $keys (squote .) }}
{{- end }}
{{- printf "[%s]" (uniq $keys | join ", ") }}
{{- end }}

{{/* yes if there is the policy for all others, too. Without the chart's roles Ebbtide could lack the right that it asks for. */}}
{{- define "ebbtide.hasMarksPolicy" -}}
{{- if and (include "ebbtide.hasKubeletPolicy" .) .Values.rbac.create }}yes{{ end }}
{{- end }}

{{/* The annotations of an object, from the root and its own, which win. Empty without any; else it begins with a new line. */}}
{{- define "ebbtide.annotations" -}}
{{- with merge dict (default dict (index . 1)) (default dict (index . 0).Values.commonAnnotations) }}
{{- dict "annotations" . | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* yes if the source, the second of the list, gives notices. */}}
{{- define "ebbtide.hasSource" -}}
{{- if has (index . 1) (default (list "queue") ((index . 0).Values.settings).source) }}yes{{ end }}
{{- end }}

{{/* The Lease that elects the replica that acts on agent notices and conditions. */}}
{{- define "ebbtide.nodesLease" -}}
{{- printf "%s-nodes" (include "ebbtide.fullname" .) }}
{{- end }}

{{/* The name of the agent's objects, and of its ServiceAccount. */}}
{{- define "ebbtide.agent" -}}
{{- printf "%s-agent" (include "ebbtide.fullname" . | trunc 57 | trimSuffix "-") }}
{{- end }}

{{/* The name label of the agent's pods: another than the service's, so that neither the Service nor the budget selects them. */}}
{{- define "ebbtide.agentLabels" -}}
app.kubernetes.io/name: {{ printf "%s-agent" (include "ebbtide.name" . | trunc 57) }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ebbtide.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "ebbtide.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "ebbtide.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The region in an AWS queue URL; else empty. */}}
{{- define "ebbtide.queueRegion" -}}
{{- $region := "[a-z]{2,}(?:-[a-z]+)+-[0-9]+" }}
{{- $url := .Values.queueUrl }}
{{- range list (printf "^https://(?:[^/]*\\.)?sqs(?:-fips)?\\.(%s)\\..*$" $region) (printf "^https://(%s)\\.queue\\..*$" $region) }}
{{- if regexMatch . $url }}
{{- regexReplaceAll . $url "${1}" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ebbtide.region" -}}
{{- default (include "ebbtide.queueRegion" .) (.Values.aws).region }}
{{- end }}

{{/* A map by kind as the program reads it: `30m,asg-terminate=1h` for `{all: 30m, asgTerminate: 1h}`. */}}
{{- define "ebbtide.kinds" -}}
{{- $words := dict }}
{{- range $kind, $each := . }}
{{- $_ := set $words (kebabcase $kind) $each }}
{{- end }}
{{- compact (list $words.all (include "ebbtide.pairs" (omit $words "all"))) | join "," }}
{{- end }}

{{/* A text or a number as the program reads it. Helm's numbers have a fraction, and it would write 2000000000 as 2e+09. */}}
{{- define "ebbtide.plain" -}}
{{- ternary (printf "%.0f" .) (toString .) (kindIs "float64" .) }}
{{- end }}

{{/* A map as the program reads it, such as `pool=spot,zone=a`. */}}
{{- define "ebbtide.pairs" -}}
{{- $pairs := list }}
{{- range $key, $each := . }}
{{- if not (kindIs "invalid" $each) }}
{{- $pairs = append $pairs (printf "%s=%s" $key (include "ebbtide.plain" $each)) }}
{{- end }}
{{- end }}
{{- join "," $pairs }}
{{- end }}

{{/* A setting as the program reads it, from its key and its value. Empty if it is not set. */}}
{{- define "ebbtide.text" -}}
{{- $key := index . 0 }}
{{- $value := index . 1 }}
{{- if and (has $key (list "heartbeat" "waitForLoadBalancers")) (kindIs "bool" $value) }}
{{- "off" }}
{{- else if kindIs "slice" $value }}
{{- $words := list }}
{{- range $value }}
{{- $words = append $words (include "ebbtide.plain" .) }}
{{- end }}
{{- join "," $words }}
{{- else if kindIs "map" $value }}
{{- include (ternary "ebbtide.pairs" "ebbtide.kinds" (has $key (list "healthIssue" "nodeSelector" "podSelector" "wave"))) $value }}
{{- else if kindIs "float64" $value }}
{{- printf "%d" (int64 $value) }}
{{- else if not (kindIs "invalid" $value) }}
{{- toString $value }}
{{- end }}
{{- end }}

{{/* The values under `settings`, `actions` and `pools` as environment variables of `ebbtide run`: fooBar becomes EBBTIDE_FOO_BAR. */}}
{{- define "ebbtide.settings" -}}
{{- $all := merge (dict "on" (default dict .Values.actions)) (default dict .Values.settings) }}
{{- range $key, $value := $all }}
{{- with include "ebbtide.text" (list $key $value) }}
- name: EBBTIDE_{{ $key | snakecase | upper }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.pools }}
- name: EBBTIDE_POOL
  value: |-
    {{- include "ebbtide.pools" . | nindent 4 }}
{{- end }}
{{- end }}

{{/* The pools as the program reads them, one a line: `NAME; node-selector=SELECTOR; FLAG=VALUE`. */}}
{{- define "ebbtide.pools" -}}
{{- $lines := list }}
{{- range . }}
{{- $items := list .name (printf "node-selector=%s" (include "ebbtide.text" (list "nodeSelector" .nodeSelector))) }}
{{- range $key, $value := omit . "name" "nodeSelector" }}
{{- with include "ebbtide.text" (list $key $value) }}
{{- $items = append $items (printf "%s=%s" (ternary "on" (kebabcase $key) (eq "actions" $key)) .) }}
{{- end }}
{{- end }}
{{- $lines = append $lines (join "; " $items) }}
{{- end }}
{{- join "\n" $lines }}
{{- end }}

{{/* The actions for the Nodes in no pool, and those of each pool, as JSON, because an include returns a text. */}}
{{- define "ebbtide.actions" -}}
{{- $base := default dict .Values.actions }}
{{- $all := list $base }}
{{- range .Values.pools }}
{{- $own := dict }}
{{- range $kind, $action := default dict .actions }}
{{- if not (kindIs "invalid" $action) }}
{{- $_ := set $own $kind $action }}
{{- end }}
{{- end }}
{{- $all = append $all (merge $own $base) }}
{{- end }}
{{- dict "all" $all | toJson }}
{{- end }}

{{/* The ports of the proxies and of the collector of traces that the values name, as a NetworkPolicy lists ports. */}}
{{- define "ebbtide.egressPorts" -}}
{{- $urls := list (.Values.notifications).proxy (.Values.traces).endpoint }}
{{- range .Values.extraEnv }}
{{- if has (upper .name) (list "HTTPS_PROXY" "ALL_PROXY") }}
{{- $urls = append $urls .value }}
{{- end }}
{{- end }}
{{- $ports := list }}
{{- range $urls }}
{{- with trim (default "" .) }}
{{- /* As the program reads them: HOST:PORT is http. */}}
{{- $url := ternary . (printf "http://%s" .) (contains "://" .) }}
{{- $named := regexFind ":[0-9]+$" (urlParse $url).host | trimPrefix ":" }}
{{- $ports = append $ports (default (ternary "443" "80" (hasPrefix "https:" $url)) $named) }}
{{- end }}
{{- end }}
{{- range uniq $ports }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{/* yes if the status page listens on the pod's address: by default not on the node's network, where no NetworkPolicy applies. */}}
{{- define "ebbtide.statusShared" -}}
{{- $shared := (.Values.status).shared }}
{{- if kindIs "invalid" $shared }}{{ $shared = not .Values.hostNetwork }}{{ end }}
{{- if and (.Values.status).enabled $shared }}yes{{ end }}
{{- end }}

{{/* The address of the status page: off, the pod's loopback address, or that of the metrics. */}}
{{- define "ebbtide.statusAddress" -}}
{{- if not (.Values.status).enabled }}off
{{- else if eq "yes" (include "ebbtide.statusShared" .) }}{{ printf "%s:%v" .Values.admin.address .Values.status.port }}
{{- else }}{{ printf "127.0.0.1:%v" .Values.status.port }}
{{- end }}
{{- end }}

{{/* The environment variables of notifications. Only what no notification can do without is required of the Secret. */}}
{{- define "ebbtide.notifications" -}}
{{- with .Values.notifications }}
{{- $secret := .existingSecret }}
{{- if $secret }}
{{- $required := ternary "routingKey" "url" (eq "pagerduty" (default "" .format)) }}
{{- $keys := .secretKeys }}
{{- range $key, $variable := dict "url" "URL" "headers" "HEADER" "signingKey" "SECRET" "routingKey" "ROUTING_KEY" }}
- name: EBBTIDE_NOTIFY_{{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ get $keys $key }}
      {{- if ne $key $required }}
      optional: true
      {{- end }}
{{- end }}
{{- $template := ternary "/notifications/template.j2" "" (not (empty .template)) }}
{{- range $variable, $value := dict "EBBTIDE_NOTIFY" (include "ebbtide.kinds" .phases) "EBBTIDE_NOTIFY_FORMAT" .format "EBBTIDE_NOTIFY_PROXY" .proxy "EBBTIDE_NOTIFY_TEMPLATE" $template "EBBTIDE_NOTIFY_TIMEOUT" .timeout }}
{{- if $value }}
- name: {{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The environment variables of traces. */}}
{{- define "ebbtide.traces" -}}
{{- with .Values.traces }}
{{- if .endpoint }}
- name: EBBTIDE_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
{{- with .existingSecret }}
- name: EBBTIDE_OTLP_HEADER
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.traces.secretKeys.headers }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* yes if the template of notifications is mounted. */}}
{{- define "ebbtide.notificationTemplate" -}}
{{- if and (.Values.notifications).existingSecret (.Values.notifications).template }}yes{{ end }}
{{- end }}

{{/* yes if the action, as set or by default, leads to a drain. */}}
{{- define "ebbtide.drains" -}}
{{- if has . (list "drain" "reboot" "replace") }}yes{{ end }}
{{- end }}

{{/* The action at the end of a rule of settings.onCondition. */}}
{{- define "ebbtide.actionOfRule" -}}
{{- splitList "=" . | last }}
{{- end }}

{{/* The kinds whose action drains in any pool, as set or by the program's default. Each between spaces. */}}
{{- define "ebbtide.drained" -}}
{{- range $actions := (include "ebbtide.actions" . | fromJson).all }}
{{- range list "asgTerminate" "spot" "stateChange" "scheduledChange" "capacityReservation" }}
{{- if include "ebbtide.drains" (default "drain" (get $actions .)) }} {{ . }} {{ end }}
{{- end }}
{{- if include "ebbtide.drains" (default "cordon" $actions.rebalance) }} rebalance {{ end }}
{{- if include "ebbtide.drains" (default "report" $actions.statusCheck) }} statusCheck {{ end }}
{{- end }}
{{- range (.Values.settings).onCondition }}
{{- if include "ebbtide.drains" (include "ebbtide.actionOfRule" .) }} nodeCondition {{ end }}
{{- end }}
{{- range $action := (.Values.settings).healthIssue }}
{{- if include "ebbtide.drains" (default "" $action) }} healthIssue {{ end }}
{{- end }}
{{- end }}

{{/* Whether a drain may delete pods: if a kind with a hard deadline is drained, or atTimeout deletes. */}}
{{- define "ebbtide.deletes" -}}
{{- $drained := include "ebbtide.drained" . }}
{{- $treatments := list (default "delete" (.Values.settings).atDeadline) }}
{{- range .Values.pools }}
{{- $treatments = append $treatments (default "leave" .atDeadline) }}
{{- end }}
{{- $timeouts := list (.Values.settings).atTimeout }}
{{- range .Values.pools }}
{{- $timeouts = append $timeouts .atTimeout }}
{{- end }}
{{- if and (contains "delete" (toJson $timeouts)) (trim $drained) }}yes{{ end }}
{{- if has "delete" $treatments }}
{{- range list "asgTerminate" "spot" "scheduledChange" "capacityReservation" }}
{{- if contains (printf " %s " .) $drained }}yes{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether Deployments are restarted before their last ready pods leave, in any pool. */}}
{{- define "ebbtide.surges" -}}
{{- $surges := not (empty (.Values.settings).surge) }}
{{- range .Values.pools }}
{{- $surges = or $surges (not (empty .surge)) }}
{{- end }}
{{- if and $surges (trim (include "ebbtide.drained" .)) }}yes{{ end }}
{{- end }}

{{/* Whether hooks are kept until volumes are detached. A dry run completes none. */}}
{{- define "ebbtide.waitsForVolumes" -}}
{{- if and (contains " asgTerminate " (include "ebbtide.drained" .)) (ne "0s" (default "60s" (.Values.settings).waitForVolumes)) (not (.Values.settings).dryRun) }}yes{{ end }}
{{- end }}

{{/* Whether the detachment of volumes is awaited before a Node is deleted. A dry run sets no taint for it. */}}
{{- define "ebbtide.detachesVolumes" -}}
{{- if and (.Values.settings).collectNodes (not (.Values.settings).dryRun) }}yes{{ end }}
{{- end }}

{{/* Whether target groups are looked at: for a drained hook, and if instances are deregistered for any drain. Not in a dry run. */}}
{{- define "ebbtide.waitsForLoadBalancers" -}}
{{- $mode := default "off" (.Values.settings).waitForLoadBalancers }}
{{- $drained := include "ebbtide.drained" . }}
{{- if (.Values.settings).dryRun }}
{{- else if and (eq "wait" $mode) (contains " asgTerminate " $drained) }}yes
{{- else if and (eq "deregister" $mode) (trim $drained) }}yes{{ end }}
{{- end }}

{{/* Whether Events and the Node's condition are written. A dry run writes none. Without drains they still end those of earlier drains. */}}
{{- define "ebbtide.writesEvents" -}}
{{- if and (ne "none" (default "blocked" (.Values.settings).events)) (not (.Values.settings).dryRun) }}yes{{ end }}
{{- end }}

{{/* The user's tolerations, and those of the NoExecute taints of settings.taint, for ownTaintsTolerationSeconds. */}}
{{- define "ebbtide.tolerations" -}}
{{- $all := default list .Values.tolerations }}
{{- $seconds := .Values.ownTaintsTolerationSeconds }}
{{- range (.Values.settings).taint }}
{{- if hasSuffix ":NoExecute" . }}
{{- $named := trimSuffix ":NoExecute" . | splitn "=" 2 }}
{{- $toleration := dict "key" $named._0 "effect" "NoExecute" }}
{{- if not (kindIs "invalid" $seconds) }}
{{- $toleration = set $toleration "tolerationSeconds" $seconds }}
{{- end }}
{{- if $named._1 }}
{{- $toleration = merge $toleration (dict "operator" "Equal" "value" $named._1) }}
{{- else }}
{{- $toleration = merge $toleration (dict "operator" "Exists") }}
{{- end }}
{{- $all = append $all $toleration }}
{{- end }}
{{- end }}
{{- if $all }}
{{- toYaml $all }}
{{- end }}
{{- end }}

{{/* A Kubernetes quantity, such as 250m or 1.5Gi, as a number; empty for other text. Sprig multiplies in decimals, so equal quantities
give equal numbers. */}}
{{- define "ebbtide.quantity" -}}
{{- $form := "^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)$" }}
{{- $text := toString . }}
{{- if regexMatch $form $text }}
{{- $factors := dict
  "n" 0.000000001 "u" 0.000001 "m" 0.001 "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000
  "P" 1000000000000000 "E" 1000000000000000000
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976
}}
{{- mulf (regexReplaceAll $form $text "${1}" | float64) (regexReplaceAll $form $text "${2}" | get $factors) }}
{{- end }}
{{- end }}
