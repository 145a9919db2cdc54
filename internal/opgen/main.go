// Command opgen generates code from the operator table (ops.txt): the shim's typed entries and their C header, the
// table of function pointers that cshim fills, the Go operators, options and their lists for tests, and the version of
// the facts of "linstock go". It reads only the table, linstock.h and the sources of those facts. With -check DIR it also
// compares every schema with the operators that a libtorch declares (DIR is its include directory), so that an error in the
// table is found when the code is generated.
//
//	go run ./internal/opgen [-check DIR]
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	check := flag.String("check", "", "include directory of a libtorch to check the schemas against")
	root := flag.String("C", ".", "the module's root")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "opgen:", err)
		os.Exit(1)
	}
}

func run(root, check string) error {
	ops, err := readTable(filepath.Join(root, "internal/opgen/ops.txt"))
	if err != nil {
		return err
	}
	if check != "" {
		if err := checkSchemas(ops, check); err != nil {
			return err
		}
		fmt.Printf("opgen: %d operators agree with %s\n", len(ops), check)
	}
	headers, err := readHeaders(root)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	emitC(headers, ops, files)
	if err := emitLoader(append(headers, files[opsHeader]...), ops, files); err != nil {
		return err
	}
	if err := emitGo(ops, files); err != nil {
		return err
	}
	if err := emitFacts(root, files); err != nil {
		return err
	}
	return writeAll(root, files)
}

// readHeaders returns the text of the shim's headers, without the generated one.
func readHeaders(root string) ([]byte, error) {
	names, err := filepath.Glob(filepath.Join(root, "cshim/include/linstock/*.h"))
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, name := range names {
		if filepath.Base(name) == filepath.Base(opsHeader) {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, text...)
	}
	return all, nil
}

// checkSchemas looks up every schema in ATen/RegistrationDeclarations.h.
func checkSchemas(ops []*op, include string) error {
	data, err := os.ReadFile(filepath.Join(include, "ATen/RegistrationDeclarations.h"))
	if err != nil {
		return err
	}
	declared := map[string]bool{}
	for _, line := range strings.Split(string(data), "\n") {
		_, note, ok := strings.Cut(line, "; // ")
		if !ok {
			continue
		}
		var entry struct{ Schema string }
		if err := json.Unmarshal([]byte(note), &entry); err == nil {
			declared[normal(strings.TrimPrefix(entry.Schema, "aten::"))] = true
		}
	}
	var wrong []string
	for _, o := range ops {
		if !declared[normal(o.text)] {
			wrong = append(wrong, fmt.Sprintf("line %d: %s", o.line, o.text))
		}
	}
	if len(wrong) != 0 {
		return fmt.Errorf("%d schemas are not in %s:\n%s", len(wrong), include, strings.Join(wrong, "\n"))
	}
	return nil
}

// normal removes differences in formatting.
func normal(s string) string { return strings.ReplaceAll(s, " ", "") }

func writeAll(root string, files map[string][]byte) error {
	for name, data := range files {
		if strings.HasSuffix(name, ".go") {
			pretty, err := format.Source(data)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			data = pretty
		}
		path := filepath.Join(root, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	// Remove files that are no longer generated.
	for _, pattern := range []string{"cshim/src/*_gen.cpp", "cshim/*_gen.*", "tensor/*_gen.go", "tensor/*_gen_test.go"} {
		old, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range old {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if _, kept := files[filepath.ToSlash(rel)]; !kept {
				if err := os.Remove(path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
