package libtorch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A Tool is a program that setup runs.
type Tool struct {
	Name    string   // what it is to the user: "C++ compiler"
	Command []string // how it is started; empty when it was not found
	Version string   // the first line it says about itself
	pkg     string   // the key of packages
}

// Found reports whether the tool is there.
func (t Tool) Found() bool { return len(t.Command) > 0 }

// find takes the first of the commands that exists and answers --version.
func find(ctx context.Context, name, pkg string, commands ...[]string) Tool {
	tool := Tool{Name: name, pkg: pkg}
	for _, c := range commands {
		path, err := exec.LookPath(c[0])
		if err != nil {
			continue
		}
		// A name may be there and yet not run: a shim of a version manager, or a
		// python3 without pip.
		out, err := exec.CommandContext(ctx, path, append(slices.Clone(c[1:]), "--version")...).Output()
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(out, []byte("\n"))
		tool.Command, tool.Version = c, strings.TrimSpace(string(first))
		return tool
	}
	return tool
}

// FindCompiler finds what CMake would: $CXX, else the usual names.
func FindCompiler(ctx context.Context) Tool {
	if cxx := strings.Fields(os.Getenv("CXX")); len(cxx) > 0 {
		return find(ctx, "C++ compiler ($CXX)", "c++", cxx)
	}
	return find(ctx, "C++ compiler", "c++", []string{"c++"}, []string{"g++"}, []string{"clang++"})
}

// FindCMake finds cmake.
func FindCMake(ctx context.Context) Tool { return find(ctx, "CMake", "cmake", []string{"cmake"}) }

// FindNinja finds ninja, under either of its names, or else make.
func FindNinja(ctx context.Context) Tool {
	return find(ctx, "ninja or make", "ninja", []string{"ninja"}, []string{"ninja-build"}, []string{"make"}, []string{"gmake"})
}

// FindPip finds pip, which setup downloads with so that the user's own indexes,
// mirrors, proxies and certificates hold.
func FindPip(ctx context.Context) Tool {
	return find(ctx, "pip", "pip", []string{"python3", "-m", "pip"}, []string{"pip3"}, []string{"python", "-m", "pip"}, []string{"pip"})
}

// packages says what each system calls what setup needs.
var packages = []struct {
	manager, install string
	names            map[string]string
}{
	{"apt-get", "apt-get install -y", map[string]string{"c++": "g++", "cmake": "cmake", "ninja": "ninja-build", "pip": "python3-pip"}},
	{"dnf", "dnf install -y", map[string]string{"c++": "gcc-c++", "cmake": "cmake", "ninja": "ninja-build", "pip": "python3-pip"}},
	{"yum", "yum install -y", map[string]string{"c++": "gcc-c++", "cmake": "cmake", "ninja": "ninja-build", "pip": "python3-pip"}},
	{"zypper", "zypper install -y", map[string]string{"c++": "gcc-c++", "cmake": "cmake", "ninja": "ninja", "pip": "python3-pip"}},
	{"pacman", "pacman -S --noconfirm", map[string]string{"c++": "gcc", "cmake": "cmake", "ninja": "ninja", "pip": "python-pip"}},
	{"apk", "apk add", map[string]string{"c++": "g++", "cmake": "cmake", "ninja": "ninja", "pip": "py3-pip"}},
	{"brew", "brew install", map[string]string{"c++": "llvm", "cmake": "cmake", "ninja": "ninja", "pip": "python"}},
}

// InstallHint is the command that installs the tools on this system, or "" where
// no package manager is known.
func InstallHint(tools ...Tool) string {
	for _, p := range packages {
		if _, err := exec.LookPath(p.manager); err != nil {
			continue
		}
		var names []string
		for _, t := range tools {
			names = append(names, p.names[t.pkg])
		}
		sudo := "sudo "
		if os.Geteuid() == 0 || p.manager == "brew" {
			sudo = ""
		}
		return sudo + p.install + " " + strings.Join(names, " ")
	}
	return ""
}

// Compiler is the compiler, not looked for, as an argument of InstallHint.
var Compiler = Tool{Name: "C++ compiler", pkg: "c++"}

// require is nil, or the error that names every tool that is missing and the
// command that installs them all.
func require(tools ...Tool) error {
	var missing []Tool
	var names []string
	for _, t := range tools {
		if !t.Found() {
			missing, names = append(missing, t), append(names, t.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	hint := InstallHint(missing...)
	if hint == "" {
		return fmt.Errorf("not found: %s; install it with your system's package manager", strings.Join(names, ", "))
	}
	return fmt.Errorf("not found: %s; install with: %s", strings.Join(names, ", "), hint)
}
