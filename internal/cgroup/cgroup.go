// Package cgroup finds the memory cgroups of a process, of version 1 and 2.
package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Group is a memory cgroup: its version, 1 or 2, and the directory of its files.
type Group struct {
	Version int
	Dir     string
}

// Of returns the memory cgroups of the process whose directory in /proc is proc, its own first and then those above it,
// as far as they can be seen from here.
func Of(proc string) (groups []Group) {
	paths := paths(proc)
	for _, m := range mounts(proc) {
		path, ok := paths[m.version]
		if !ok {
			continue
		}
		// A mount shows the groups below its root. In a container the root is often the process's own group. A group
		// outside of the root, or of the namespace, cannot be seen: then the mount point is the nearest one.
		rel := path
		if m.root != "/" {
			if rel, ok = strings.CutPrefix(path, m.root); !ok || rel != "" && rel[0] != '/' {
				rel = "/"
			}
		}
		// A path may also be the host's, while the mount shows the container's groups alone: directories that do not
		// exist are skipped.
		for rel = filepath.Clean("/" + rel); ; rel = filepath.Dir(rel) {
			g := Group{m.version, filepath.Join(m.dir, rel)}
			if info, err := os.Stat(g.Dir); err == nil && info.IsDir() {
				groups = append(groups, g)
			}
			if rel == "/" {
				break
			}
		}
		delete(paths, m.version) // further mounts show the same groups
	}
	return groups
}

// Limit is the group's own limit in bytes; 0: none. Above memory.high the kernel slows processes down until they hardly
// run, so that it counts as a limit.
func (g Group) Limit() int64 {
	files := []string{"memory.max", "memory.high"}
	if g.Version == 1 {
		files = []string{"memory.limit_in_bytes"}
	}
	least := int64(math.MaxInt64)
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(g.Dir, name))
		if err != nil {
			continue
		}
		// "max" is no number. Version 1 has a number near the largest for no limit.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < 1<<60 {
			least = min(least, n)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// paths are the paths of a process's memory cgroups by version.
func paths(proc string) map[int]string {
	found := map[int]string{}
	text, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if fields[0] == "0" && fields[1] == "" {
			found[2] = fields[2]
		} else if hasMemory(fields[1]) {
			found[1] = fields[2]
		}
	}
	return found
}

// A mount is where the groups below root can be seen.
type mount struct {
	version   int
	root, dir string
}

func mounts(proc string) (found []mount) {
	text, _ := os.ReadFile(filepath.Join(proc, "mountinfo"))
	for line := range strings.Lines(string(text)) {
		// 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		m := mount{root: unescape(left[3]), dir: unescape(left[4])}
		switch {
		case right[0] == "cgroup2":
			m.version = 2
		case right[0] == "cgroup" && hasMemory(right[2]):
			m.version = 1
		default:
			continue
		}
		found = append(found, m)
	}
	return found
}

func hasMemory(list string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == "memory" {
			return true
		}
	}
	return false
}

// unescape replaces the octal numbers that stand for blanks, tabs, newlines and backslashes in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
