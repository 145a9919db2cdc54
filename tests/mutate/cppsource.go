package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// cppFile is a source file of the shim. There is no parser for it: locks, refusals and handlers have few forms, and a
// count (see main) detects when they are no longer found.
type cppFile struct {
	name   string // relative to cshim: src/memory.cpp
	source []byte
	wraps  []wrap
}

var (
	lockForm   = regexp.MustCompile(`std::(?:lock_guard|unique_lock)<std::mutex> lock\(`)
	catchForm  = regexp.MustCompile(`catch \(([^()]*(?:\(\))?[^()]*)\) \{`)
	ifForm     = regexp.MustCompile(`\bif \(`)
	needForm   = regexp.MustCompile(`(?m)^  (need_(?:index|range)\(.*\));$`)
	functionOf = regexp.MustCompile(`(?m)^(?:[\w:<>*&,~\[\] ]+ )?[*&]?((?:\w+::)*~?\w+)\([^;{}]*\)[^;{}]*\{|^class (\w+)|^struct (\w+)`)
)

// refusal matches the statement after an if that is a guard of the shim.
var refusal = regexp.MustCompile(`^\s*\{?\s*(?:refuse\(|throw (?:ls::)?ArgumentError|mismatch\()`)

// converting is the file whose handlers are the clauses of the function that converts exceptions to errors.
const converting = "src/errors.cpp"

func (c *collector) cppSources() error {
	if _, err := os.Stat(filepath.Join(c.root, "cshim", converting)); err != nil {
		return fmt.Errorf("converting in cppsource.go: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(c.root, "cshim/src/*"))
	if err != nil {
		return err
	}
	cuda, err := filepath.Glob(filepath.Join(c.root, "cshim/cuda/*.*"))
	if err != nil {
		return err
	}
	for _, name := range append(names, cuda...) {
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f := &cppFile{name: filepath.Base(filepath.Dir(name)) + "/" + filepath.Base(name), source: source}
		c.cpp = append(c.cpp, f)
		if !strings.HasSuffix(name, ".cpp") && !strings.HasSuffix(name, "/shim.h") || strings.Contains(name, "_gen.") {
			continue
		}
		c.cppLines(f)
	}
	return nil
}

func (c *collector) addCPP(f *cppFile, kind, what string, at int) *mutant {
	in := ""
	for _, m := range functionOf.FindAllSubmatchIndex(f.source[:at], -1) {
		for g := 2; g < len(m); g += 2 {
			if m[g] >= 0 {
				in = string(f.source[m[g]:m[g+1]])
			}
		}
	}
	key := fmt.Sprintf("cshim/%s: %s in %s", f.name, strings.Join(strings.Fields(what), " "), in)
	if c.keys[key]++; c.keys[key] > 1 {
		key = fmt.Sprintf("%s #%d", key, c.keys[key])
	}
	c.next++
	m := &mutant{n: c.next, key: key, kind: kind, pkg: "cshim/" + filepath.Dir(f.name), file: "cshim/" + f.name,
		place: fmt.Sprintf("cshim/%s:%d", f.name, 1+strings.Count(string(f.source[:at]), "\n"))}
	c.all = append(c.all, m)
	return m
}

func (c *collector) cppLines(f *cppFile) {
	s := f.source
	for _, at := range lockForm.FindAllIndex(s, -1) {
		start, end := at[1], closing(s, at[1]-1)
		if i := bytes.Index(s[start:max(start, end)], []byte(", ")); i >= 0 {
			end = start + i // the mutex; options follow
		}
		m := c.addCPP(f, "lock", "lock of "+string(s[start:end]), at[0])
		f.wraps = append(f.wraps, wrap{start: start, end: end, pre: fmt.Sprintf("ls_mutant::lock(%d, ", m.n), post: ")"})
	}
	for _, at := range catchForm.FindAllSubmatchIndex(s, -1) {
		what := string(s[at[2]:at[3]])
		m := c.addCPP(f, "exceptions", "catch ("+what+")", at[0])
		text := fmt.Sprintf(" if (ls_mutant::on(%d)) throw;", m.n)
		if f.name == converting {
			// Remove one clause.
			text = fmt.Sprintf(" if (ls_mutant::on(%d)) return make(LS_ERR_UNKNOWN, \"\");", m.n)
			if what == "..." {
				text = fmt.Sprintf(" if (ls_mutant::on(%d)) throw;", m.n)
			}
		}
		f.wraps = append(f.wraps, wrap{start: at[1], end: at[1], pre: text})
	}
	for _, at := range ifForm.FindAllIndex(s, -1) {
		start, end := at[1], closing(s, at[1]-1)
		if end < 0 || !refusal.Match(s[end+1:]) || strings.Contains(string(s[start:end]), ";") {
			continue
		}
		m := c.addCPP(f, "guard", "if ("+string(s[start:end])+")", at[0])
		f.wraps = append(f.wraps, wrap{start: start, end: end, pre: fmt.Sprintf("!ls_mutant::on(%d) && (", m.n), post: ")"})
	}
	for _, at := range needForm.FindAllSubmatchIndex(s, -1) {
		m := c.addCPP(f, "guard", string(s[at[2]:at[3]]), at[2])
		f.wraps = append(f.wraps, wrap{start: at[2], end: at[2], pre: fmt.Sprintf("if (!ls_mutant::on(%d)) ", m.n)})
	}
}

// closing returns the position of the parenthesis that closes the one at open.
func closing(s []byte, open int) int {
	depth := 0
	for i := open; i < len(s); i++ {
		switch s[i] {
		case '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
		case '\'':
			if i+2 < len(s) && (s[i+2] == '\'' || s[i+1] == '\\') {
				i += 2
			}
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// mutantHeader is included before every C++ source; mutantSource is compiled with them.
const mutantHeader = `#pragma once
#ifdef __cplusplus
#include <mutex>
namespace ls_mutant {
__attribute__((visibility("default"))) bool on(int n) noexcept;
// Each caller locks its own mutex, so that the lock has no effect.
template <class M>
M &lock(int n, M &m) {
  static thread_local M none;
  return on(n) ? none : m;
}
}  // namespace ls_mutant
#endif
`

const mutantSource = `#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace ls_mutant {
namespace {
constexpr size_t kMost = 1 << 14;

// The bytes in which the Go tests record what they reach (internal/mutant); nullptr: nothing is recorded.
char *mapped() {
  const char *record = std::getenv("LINSTOCK_MUTANT_HITS");
  if (record == nullptr) return nullptr;
  int file = open((std::string(record) + ".map").c_str(), O_RDWR);
  if (file < 0) return nullptr;
  void *p = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return p == MAP_FAILED ? nullptr : static_cast<char *>(p);
}
}  // namespace

bool on(int n) noexcept {
  static char *const hits = mapped();
  static const int active = [] {
    const char *s = std::getenv("LINSTOCK_MUTANT");
    return s ? std::atoi(s) : 0;
  }();
  if (hits != nullptr) __atomic_store_n(hits + n, 1, __ATOMIC_RELAXED);
  return n == active;
}
}  // namespace ls_mutant
`

// writeShim makes a copy of cshim with the mutants, for CMake.
func (c *collector) writeShim(dir string) error {
	tree := filepath.Join(dir, "cshim")
	for _, name := range []string{"cshim/CMakeLists.txt", "cshim/include", "cshim/cuda/include", "cshim/cuda/stubs", "cshim/dist", "tests/cshim"} {
		if err := copyTree(filepath.Join(c.root, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, f := range c.cpp {
		if err := writeChanged(filepath.Join(tree, f.name), rewrite(f.source, f.wraps)); err != nil {
			return err
		}
	}
	if err := writeChanged(filepath.Join(tree, "src/mutant.cpp"), []byte(mutantSource)); err != nil {
		return err
	}
	return writeChanged(filepath.Join(dir, "mutant.h"), []byte(mutantHeader))
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeChanged(filepath.Join(to, rel), data)
	})
}

// writeChanged does not write a file that is unchanged, so that it is not compiled again.
func writeChanged(name string, data []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o666)
}
