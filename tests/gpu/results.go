package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// The states of a finished step.
const (
	stateOK     = "ok"
	stateFailed = "FAILED"
)

// results is the content of results.json.
type results struct {
	Kit struct {
		Commit string `json:"commit"`
		Torch  string `json:"torch"`
		Built  string `json:"built"`
	} `json:"kit"`
	Machine map[string]string `json:"machine"` // output of machine.py in the last call
	Dry     bool              `json:"dry"`
	Share   float64           `json:"share"`
	Steps   []stepResult      `json:"steps"`
}

type stepResult struct {
	Part    string            `json:"part"`
	Step    string            `json:"step"`
	State   string            `json:"state"`
	Note    string            `json:"note,omitempty"`
	Kit     string            `json:"kit"` // the commit that was run
	Began   string            `json:"began"`
	Seconds float64           `json:"seconds"`
	Rows    []json.RawMessage `json:"rows,omitempty"`
}

// fail marks the step as failed and prepends the notes.
func (s *stepResult) fail(note string) {
	s.State = stateFailed
	s.Note += prefixed(map[bool]string{true: "; "}[s.Note != ""], note)
}

func load(out string) (*results, error) {
	r := &results{}
	data, err := os.ReadFile(filepath.Join(out, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(out, "results.json"), err)
	}
	return r, nil
}

// describe collects the kit's and the machine's descriptions.
func (r *results) describe(run *runner) error {
	if data, err := os.ReadFile(filepath.Join(run.work, "kit.json")); err != nil {
		return err
	} else if err := json.Unmarshal(data, &r.Kit); err != nil {
		return fmt.Errorf("kit.json: %w", err)
	}
	r.Dry, r.Share = run.dry, run.share
	cmd := exec.Command(run.python, filepath.Join(run.work, "repo/tests/gpu/machine.py"))
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err == nil {
		r.Machine = nil
		err = json.Unmarshal(said, &r.Machine)
	}
	if err != nil {
		return fmt.Errorf("machine.py: %w", err)
	}
	return nil
}

func (r *results) find(part, step string) *stepResult {
	for i := range r.Steps {
		if r.Steps[i].Part == part && r.Steps[i].Step == step {
			return &r.Steps[i]
		}
	}
	return nil
}

// put records a step and writes results.json and results.md.
func (r *results) put(out string, s stepResult) error {
	if old := r.find(s.Part, s.Step); old != nil {
		*old = s
	} else {
		r.Steps = append(r.Steps, s)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"results.json": data, "results.md": []byte(r.markdown())} {
		path := filepath.Join(out, name)
		if err := os.WriteFile(path+".new", data, 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

func (r *results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# GPU kit\n\n")
	if r.Dry {
		fmt.Fprintf(&b, "Dry run over the fake CUDA runtime: part tests computes with the CPU's kernels, the other parts' kernels do nothing, and times mean nothing.\n\n")
	}
	fmt.Fprintf(&b, "- kit: %s, for libtorch %s, built %s%s\n", r.Kit.Commit, r.Kit.Torch, r.Kit.Built, map[bool]string{true: fmt.Sprintf("; share %g", r.Share)}[r.Share != 1])
	for _, key := range []string{"device", "driver", "memory", "torch", "cuda", "cudnn", "nccl", "python", "processor", "kernel", "glibc"} {
		if v := r.Machine[key]; v != "" {
			fmt.Fprintf(&b, "- %s: %s\n", key, v)
		}
	}
	for _, p := range parts {
		var steps []step
		for _, s := range p.steps {
			if r.find(p.name, s.name) != nil {
				steps = append(steps, s)
			}
		}
		if len(steps) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n", p.name, strings.TrimRight(p.shows, "."))
		w := table.NewWriter()
		w.AppendHeader(table.Row{"step", "shows", "state", "seconds", "note"})
		for _, s := range steps {
			res := r.find(p.name, s.name)
			w.AppendRow(table.Row{s.name, s.shows, res.State, fmt.Sprintf("%.1f", res.Seconds), res.Note})
		}
		fmt.Fprintln(&b, w.RenderMarkdown())
		for _, s := range steps {
			if rows := r.find(p.name, s.name).Rows; len(rows) > 0 {
				fmt.Fprintf(&b, "\n%s:\n\n%s\n", s.name, rowsTable(s.name, rows))
			}
		}
	}
	return b.String()
}

// rowsTable formats rows as a table. Its columns are the rows' fields in order of first appearance.
func rowsTable(name string, rows []json.RawMessage) string {
	var columns []string
	var cells []map[string]string
	for _, raw := range rows {
		keys, values := fields(raw)
		for _, k := range keys {
			if !slices.Contains(columns, k) {
				columns = append(columns, k)
			}
		}
		cells = append(cells, values)
	}
	w := table.NewWriter()
	header := make(table.Row, len(columns))
	for i, c := range columns {
		header[i] = strings.Replace(c, "row", name, map[bool]int{true: 1}[c == "row"])
	}
	w.AppendHeader(header)
	for _, values := range cells {
		row := make(table.Row, len(columns))
		for i, c := range columns {
			row[i] = values[c]
		}
		w.AppendRow(row)
	}
	return w.RenderMarkdown()
}

// fields returns an object's fields in order, with values formatted for a table.
func fields(raw json.RawMessage) (keys []string, values map[string]string) {
	values = map[string]string{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if _, err := d.Token(); err != nil {
		return nil, values
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		var v any
		if err := d.Decode(&v); err != nil {
			break
		}
		k := fmt.Sprint(key)
		keys = append(keys, k)
		values[k] = cell(v)
	}
	return keys, values
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "yes", false: "NO"}[v]
	case json.Number:
		f, err := v.Float64()
		if err != nil || !strings.ContainsAny(v.String(), ".eE") {
			return v.String()
		}
		return strconv.FormatFloat(f, 'g', 4, 64)
	}
	return fmt.Sprint(v)
}
