// Command kube is every Kubernetes program of the lab in one binary: the name
// it is called by (argv[0], or the first argument) selects the program, as
// busybox does. One link instead of seven saves minutes on a cold machine and
// lets all processes of a lab share the same pages.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// commands maps a program's name to the constructor of its cobra command.
// Only the selected one is constructed: constructors register process-wide
// feature gates and may not run twice.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" {
		if len(os.Args) < 2 {
			fmt.Fprintln(os.Stderr, "usage: kube PROGRAM [ARG...]; programs: etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl")
			os.Exit(2)
		}
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	construct, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: no program %q in this binary\n", name)
		os.Exit(2)
	}
	command := construct()
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(command); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(command))
}
