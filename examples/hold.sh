#!/bin/sh
# Lets the jobs on a node save their state before Ebbtide evicts them, for `--hold before-drain`. Needs kubectl, and the rights to watch
# and patch Nodes, to list pods and to exec into them.
set -eu
running=$(mktemp -d)

save() {
  kubectl get pods --all-namespaces --selector job-name --field-selector "spec.nodeName=$1,status.phase=Running" --no-headers |
    while read -r namespace pod _; do
      kubectl exec --namespace "$namespace" "$pod" -- /bin/sh -c 'kill -USR1 1' </dev/null || echo "$pod can't save" >&2
    done
  kubectl annotate node "$1" --overwrite ebbtide/release=before-drain
}

kubectl get nodes --watch --output \
  'jsonpath={.metadata.name};{.metadata.annotations.ebbtide/hold};{.metadata.annotations.ebbtide/release}{"\n"}' |
  while IFS=';' read -r node hold release; do
    [ "$hold;$release" = "before-drain;" ] && mkdir "$running/$node" 2>/dev/null || continue
    { save "$node"; rmdir "$running/$node"; } &
  done
