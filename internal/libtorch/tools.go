package libtorch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// A Tool is a program that setup runs.
type Tool struct {
	Name    string   // for messages: "C++ compiler"
	Command []string // command line; empty if the tool was not found
	Version string   // first line of the output of --version
	Least   string   // the version that setup needs; "" means any
	Old     string   // if the tool was not found, the version of one that is older than Least
	pkg     string   // key of packages
	chosen  string   // the environment variable that names it, if one does
}

// Found reports whether the tool was found.
func (t Tool) Found() bool { return len(t.Command) > 0 }

// find returns the first of the commands that exists, succeeds with --version and is not older than least.
func find(ctx context.Context, name, pkg, least string, commands ...[]string) Tool {
	tool := Tool{Name: name, Least: least, pkg: pkg}
	for _, c := range commands {
		path, err := exec.LookPath(c[0])
		if err != nil {
			continue
		}
		// A command may exist and yet not run: a shim of a version manager, or a python3 without pip.
		out, err := Output(ctx, path, append(slices.Clone(c[1:]), "--version")...)
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(out, []byte("\n"))
		if version := toolVersion.FindString(string(first)); older(version, least) {
			tool.Old = version
			continue
		}
		tool.Command, tool.Version, tool.Old = c, strings.TrimSpace(string(first)), ""
		return tool
	}
	return tool
}

// toolVersion finds the version in the output of --version.
var toolVersion = regexp.MustCompile(`[0-9]+\.[0-9]+[0-9.]*`)

// older compares the first two numbers of versions. It returns false if one is not a version.
func older(version, least string) bool {
	var a, b [2]int
	_, err1 := fmt.Sscanf(version, "%d.%d", &a[0], &a[1])
	_, err2 := fmt.Sscanf(least, "%d.%d", &b[0], &b[1])
	return errors.Join(err1, err2) == nil && slices.Compare(a[:], b[:]) < 0
}

// FindCompiler finds the compiler that CMake would use: $CXX, or otherwise one with a usual name.
func FindCompiler(ctx context.Context) Tool {
	if cxx := strings.Fields(os.Getenv("CXX")); len(cxx) > 0 {
		tool := find(ctx, "C++ compiler ($CXX)", "c++", "", cxx)
		tool.chosen = "CXX"
		return tool
	}
	return find(ctx, "C++ compiler", "c++", "", []string{"c++"}, []string{"g++"}, []string{"clang++"})
}

// FindCMake finds cmake, of the version that cshim/CMakeLists.txt requires.
func FindCMake(ctx context.Context) Tool {
	return find(ctx, "CMake", "cmake", "3.18", []string{"cmake"})
}

// FindNinja finds ninja under either of its names, or otherwise make.
func FindNinja(ctx context.Context) Tool {
	return find(ctx, "ninja or make", "ninja", "", []string{"ninja"}, []string{"ninja-build"}, []string{"make"}, []string{"gmake"})
}

// FindPip finds pip. Setup downloads with pip, so that the user's own indexes, mirrors, proxies and certificates apply.
// Older versions take only one --platform and do not know manylinux_2_28.
func FindPip(ctx context.Context) Tool {
	return find(ctx, "pip", "pip", "20.3", []string{"python3", "-m", "pip"}, []string{"pip3"}, []string{"python", "-m", "pip"}, []string{"pip"})
}

// packages maps the tools that setup needs to package names of each system.
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

// InstallHint returns the command that installs the tools on this system, or "" if no package manager is known. If a
// variable of the environment names a tool that is not there, the command unsets it. It updates an old tool with pip:
// the system's package is as old.
func InstallHint(tools ...Tool) string {
	for i, t := range tools {
		fix := ""
		switch {
		case t.chosen != "":
			fix = "unset " + t.chosen
		case t.Old != "" && os.Getenv("VIRTUAL_ENV") != "":
			fix = "python3 -m pip install -U " + t.pkg
		case t.Old != "":
			fix = "python3 -m pip install --user -U " + t.pkg
		default:
			continue
		}
		others := slices.Delete(slices.Clone(tools), i, i+1)
		if len(others) == 0 {
			return fix
		}
		if hint := InstallHint(others...); hint != "" {
			return hint + " && " + fix // pip may be one of the others
		}
		return ""
	}
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

// Compiler stands for the C++ compiler in calls of InstallHint.
var Compiler = Tool{Name: "C++ compiler", pkg: "c++"}

// missing names a tool that was not found.
func (t Tool) missing() string {
	if t.Old == "" {
		return t.Name
	}
	return fmt.Sprintf("%s %s or newer (this one is %s)", t.Name, t.Least, t.Old)
}

// require returns an error that names every missing tool and the command that installs them all, or nil. If ctx has
// ended, which makes tools look missing, it returns the cause.
func require(ctx context.Context, tools ...Tool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var missing []Tool
	var names []string
	for _, t := range tools {
		if !t.Found() {
			missing, names = append(missing, t), append(names, t.missing())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	hint := InstallHint(missing...)
	if hint == "" {
		return fmt.Errorf("not found: %s; install it with your system's package manager", strings.Join(names, ", "))
	}
	return fmt.Errorf("not found: %s; fix it with: %s", strings.Join(names, ", "), hint)
}
