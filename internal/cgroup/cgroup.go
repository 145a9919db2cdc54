// Package cgroup finds the memory cgroups of a process, of versions 1 and 2.
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

// Of returns the memory cgroups of the process whose directory in /proc is proc: first its own, then the enclosing ones
// that are visible to this process.
func Of(proc string) (groups []Group) {
	paths := paths(proc)
	for _, m := range mounts(proc) {
		path, ok := paths[m.version]
		if !ok {
			continue
		}
		// A mount shows the groups below its root. In a container the root is often the process's own group. Groups
		// outside the root, or outside the namespace, are not visible; then the mount point is the nearest one.
		rel := path
		if m.root != "/" {
			if rel, ok = strings.CutPrefix(path, m.root); !ok || rel != "" && rel[0] != '/' {
				rel = "/"
			}
		}
		// A path may also be the host's although the mount shows only the container's groups. Skip directories that do
		// not exist.
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

// Limit returns the least limit of a process's memory cgroups in bytes, or 0 if none has one.
func Limit(proc string) (least int64) {
	for _, g := range Of(proc) {
		if n := g.Limit(); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// Limit returns the group's own limit in bytes, or 0 if it has none. memory.high counts as a limit, because above it
// the kernel slows processes down until they hardly run.
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
		// "max" is not a number. In version 1, a number near the largest means no limit.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < 1<<60 {
			least = min(least, n)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// paths returns the paths of a process's memory cgroups by version.
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

// mount is a mount point that shows the groups below root.
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

// unescape replaces the octal codes for spaces, tabs, newlines and backslashes in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
