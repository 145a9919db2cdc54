package main

import (
	"fmt"
	"os"
	"os/exec"
)

// network is a namespace with a bridge, and one for each rank, so that each of them can be cut off. The addresses are those of no
// other machine.
type network struct{ name string }

// newNetwork makes the network, or returns an error if this process must not.
func newNetwork() (*network, error) {
	n := &network{name: fmt.Sprintf("ranks-%d", os.Getpid())}
	commands := [][]string{
		{"netns", "add", n.name},
		{"-n", n.name, "link", "add", "bridge", "type", "bridge"},
		{"-n", n.name, "link", "set", "bridge", "up"},
	}
	for r := range ranks {
		ns := n.namespace(r)
		commands = append(commands,
			[]string{"netns", "add", ns},
			[]string{"-n", n.name, "link", "add", cable(r), "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"-n", n.name, "link", "set", cable(r), "master", "bridge", "up"},
			[]string{"-n", ns, "addr", "add", address(r) + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "eth0", "up"},
			[]string{"-n", ns, "link", "set", "lo", "up"})
	}
	for _, args := range commands {
		if err := ip(args...); err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

func (n *network) namespace(rank int) string { return fmt.Sprintf("%s-%d", n.name, rank) }
func cable(rank int) string                  { return fmt.Sprintf("rank%d", rank) }
func address(rank int) string                { return fmt.Sprintf("192.0.2.%d", rank+1) }

// inside makes a command run in the namespace of a rank.
func (n *network) inside(rank int, cmd *exec.Cmd) {
	cmd.Args = append([]string{"ip", "netns", "exec", n.namespace(rank)}, cmd.Args...)
	cmd.Path = ipPath
	cmd.Env = append(cmd.Env, "MASTER_ADDR="+address(0), "GLOO_SOCKET_IFNAME=eth0")
}

// cut cuts a rank off from the others, and connect ends that.
func (n *network) cut(rank int) error     { return ip("-n", n.name, "link", "set", cable(rank), "down") }
func (n *network) connect(rank int) error { return ip("-n", n.name, "link", "set", cable(rank), "up") }

func (n *network) close() {
	for r := range ranks {
		_ = ip("netns", "del", n.namespace(r))
	}
	_ = ip("netns", "del", n.name)
}

var ipPath, _ = exec.LookPath("ip")

func ip(args ...string) error {
	if ipPath == "" {
		return exec.ErrNotFound
	}
	if out, err := exec.Command(ipPath, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}
