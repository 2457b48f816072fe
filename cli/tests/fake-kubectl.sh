#!/bin/sh
# Stands in for kubectl in tests: answers look-ups of pods by label and node; of
# `exec` it prints the arguments and ends with status 7.
case "$*" in
*" exec "*) printf 'EXEC:'; printf ' [%s]' "$@"; echo; exit 7 ;;
*"get lease"*) printf 'kube-ovn-controller-b_0f1e' ;;
*"--selector app=kube-ovn-controller"*) printf 'kube-ovn-controller-a kube-ovn-controller-b' ;;
*ovn-nb-leader=true*) printf 'ovn-central-x' ;;
*ovn-sb-leader=true*) printf 'ovn-central-y' ;;
*"--selector app=ovs"*spec.nodeName=n1*) printf 'ovs-ovn-n1' ;;
*"--selector app=kube-ovn-cni"*spec.nodeName=n1*) printf 'kube-ovn-cni-n1' ;;
*spec.nodeName=*) ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
