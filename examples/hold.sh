#!/bin/sh
# Lets the jobs on a node save their state before Ebbtide evicts them, for `--hold before-drain`. Needs kubectl, and the rights in
# hold-rbac.yaml and hold-rbac-jobs.yaml. /save-state is a command of the jobs that returns when it is done.
set -u
running=$(mktemp -d)

save() {
  kubectl get pods --all-namespaces --selector job-name --field-selector "spec.nodeName=$1,status.phase=Running" --no-headers |
    while read -r namespace pod _; do
      timeout 300 kubectl exec --namespace "$namespace" "$pod" -- /save-state </dev/null || echo "$pod can't save" >&2
    done
  kubectl annotate node "$1" --overwrite ebbtide/release=before-drain
}

columns='jsonpath={.metadata.name};{.metadata.annotations.ebbtide/hold};{.metadata.annotations.ebbtide/release}{"\n"}'
while kubectl get nodes --watch --output "$columns" || sleep 5; do :; done |
  while IFS=';' read -r node hold release; do
    [ "$hold;$release" = "before-drain;" ] && mkdir "$running/$node" 2>/dev/null || continue
    { save "$node"; rmdir "$running/$node"; } &
  done
