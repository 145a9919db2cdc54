package main

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The fuzzer of the C API calls each function that the headers declare, or its list of what is left out has it.
func TestTheFuzzerCallsEveryFunction(t *testing.T) {
	headers, err := readHeaders("../..")
	if err != nil {
		t.Fatal(err)
	}
	typed, err := os.ReadFile("../../" + opsHeader)
	if err != nil {
		t.Fatal(err)
	}
	fuzzer, err := os.ReadFile("../../tests/cshim/fuzz.cpp")
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, call := range regexp.MustCompile(`\b(ls_\w+)\(`).FindAllSubmatch(comment.ReplaceAll(fuzzer, nil), -1) {
		called[string(call[1])] = true
	}
	_, list, found := strings.Cut(string(fuzzer), "// Left out:\n")
	if !found {
		t.Fatal("tests/cshim/fuzz.cpp has no list of what is left out")
	}
	var out []string // patterns
	used := map[string]bool{}
	for line := range strings.Lines(list) {
		entry, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			break
		}
		pattern, reason, _ := strings.Cut(strings.TrimSpace(entry), "  ")
		if reason == "" {
			t.Errorf("%s is left out without a reason", pattern)
		}
		out = append(out, pattern)
	}
	functions := declaration.FindAllSubmatch(comment.ReplaceAll(append(headers, typed...), nil), -1)
	if len(functions) < 200 {
		t.Fatalf("the headers declare only %d functions", len(functions))
	}
	for _, f := range functions {
		name := string(f[2])
		if called[name] {
			continue
		}
		i := slices.IndexFunc(out, func(pattern string) bool {
			match, err := path.Match(pattern, name)
			return err == nil && match
		})
		if i < 0 {
			t.Errorf("the fuzzer does not call %s", name)
			continue
		}
		used[out[i]] = true
	}
	for _, pattern := range out {
		if !used[pattern] {
			t.Errorf("%s is left out, but the fuzzer calls it or the headers do not declare it", pattern)
		}
	}
}
