{{/* A section that is there, but empty, is nothing to helm, without its defaults. `(.Values.section).key` is nothing then, too, which
is as good as these defaults are. Sections whose defaults are more than nothing must be there: see validate.yaml. */}}

{{/* The chart's name. */}}
{{- define "ebbtide.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of what the chart makes. A release that is named after the chart is not named twice. */}}
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

{{- define "ebbtide.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "ebbtide.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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

{{/* The region that a queue's URL names, if it is one of AWS's. */}}
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

{{/* What each kind leads to, as YAML. The bare word `on` is a boolean to YAML: what stands under it has come as `true`.
Only null is nothing: what else is false, such as `off`, is for validate.yaml to refuse. */}}
{{- define "ebbtide.on" -}}
{{- $on := dict }}
{{- range list "on" "true" }}
{{- range $kind, $action := default dict (get $.Values .) }}
{{- if not (kindIs "invalid" $action) }}
{{- $_ := set $on $kind $action }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $on }}
{{- end }}

{{/* What is set under `settings`, and under `on`, as the variables of `ebbtide run`: a flag fooBar is EBBTIDE_FOO_BAR. */}}
{{- define "ebbtide.settings" -}}
{{- $all := merge (dict "on" (include "ebbtide.on" . | fromYaml)) (default dict .Values.settings) }}
{{- range $key, $value := $all }}
{{- $text := "" }}
{{- if and (eq $key "heartbeat") (kindIs "bool" $value) }}
{{- $text = "off" }}
{{- else if kindIs "slice" $value }}
{{- $text = join "," $value }}
{{- else if kindIs "map" $value }}
{{- $pairs := list }}
{{- range $kind, $each := $value }}
{{- if $each }}
{{- $pairs = append $pairs (ternary $each (printf "%s=%s" $kind $each) (eq $kind "all")) }}
{{- end }}
{{- end }}
{{- $text = join "," $pairs }}
{{- else if not (kindIs "invalid" $value) }}
{{- $text = toString $value }}
{{- end }}
{{- if $text }}
- name: EBBTIDE_{{ $key | snakecase | upper }}
  value: {{ $text | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* What kinds are drained: those that are set to, and those that the program drains by itself. Each between spaces. */}}
{{- define "ebbtide.drained" -}}
{{- $on := include "ebbtide.on" . | fromYaml }}
{{- range list "asg-terminate" "spot" "state-change" "scheduled-change" "capacity-reservation" }}
{{- if eq "drain" (default "drain" (index $on .)) }} {{ . }} {{ end }}
{{- end }}
{{- if eq "drain" (default "cordon" (index $on "rebalance")) }} rebalance {{ end }}
{{- end }}

{{/* Whether a drain may delete pods: one whose deadline is the end of the node's capacity. */}}
{{- define "ebbtide.deletes" -}}
{{- $drained := include "ebbtide.drained" . }}
{{- if ne "leave" (default "delete" (.Values.settings).atDeadline) }}
{{- range list "asg-terminate" "spot" "scheduled-change" "capacity-reservation" }}
{{- if contains (printf " %s " .) $drained }}yes{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether Events and the Node's condition are written: a dry run writes none. Without drains they end what an earlier one told of. */}}
{{- define "ebbtide.tells" -}}
{{- if and (ne "none" (default "blocked" (.Values.settings).events)) (not (.Values.settings).dryRun) }}yes{{ end }}
{{- end }}

{{/* The tolerations: the user's, and those of our own NoExecute taints, for so long as our pods may need on their own node. */}}
{{- define "ebbtide.tolerations" -}}
{{- $all := default list .Values.tolerations }}
{{- $seconds := .Values.ownTaintsTolerationSeconds }}
{{- range (.Values.settings).taint }}
{{- if hasSuffix ":NoExecute" . }}
{{- $named := trimSuffix ":NoExecute" . | splitn "=" 2 }}
{{- $toleration := dict "key" $named._0 "effect" "NoExecute" "tolerationSeconds" $seconds }}
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

{{/* A Kubernetes quantity, such as 250m or 1.5Gi, as a number; nothing where it is none. Sprig multiplies in decimals, so what is the
same amount is the same number. */}}
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
