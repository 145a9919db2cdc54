package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// readRows parses the lines of standard output that are JSON objects with the field "row". Each is a line of
// the step's table; its other fields are the columns. A field "ok" that is false makes the step fail; "note" is
// the reason. Other lines appear in the log only.
func readRows(stdout, _ []byte, res *stepResult) error {
	bad := 0
	for line := range bytes.Lines(stdout) {
		line = bytes.TrimSpace(line)
		if !bytes.HasPrefix(line, []byte(`{`)) {
			continue
		}
		var r struct {
			Row  *string
			OK   *bool
			Note string
		}
		if json.Unmarshal(line, &r) != nil || r.Row == nil {
			continue
		}
		res.Rows = append(res.Rows, json.RawMessage(bytes.Clone(line)))
		if r.OK != nil && !*r.OK {
			if bad++; bad <= 3 {
				res.fail(fmt.Sprintf("%s%s", *r.Row, prefixed(": ", r.Note)))
			}
		}
	}
	if bad > 3 {
		res.fail(fmt.Sprintf("and %d more", bad-3))
	}
	if len(res.Rows) == 0 {
		return errors.New("the step printed no row")
	}
	return nil
}

var testLine = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+)`)

// readGoTest parses the output of a Go test binary run with -test.v: the number of tests that passed, and the
// names of those that failed or were skipped.
func readGoTest(_, all []byte, res *stepResult) error {
	passed := 0
	var failed, skipped []string
	for _, m := range testLine.FindAllSubmatch(all, -1) {
		switch string(m[1]) {
		case "PASS":
			passed++
		case "FAIL":
			failed = append(failed, string(m[2]))
		case "SKIP":
			skipped = append(skipped, string(m[2]))
		}
	}
	return countTests(res, passed, failed, skipped)
}

// readRowsAndTests parses the output of a Go test that prints rows.
func readRowsAndTests(stdout, all []byte, res *stepResult) error {
	if err := readRows(stdout, all, res); err != nil && len(all) == 0 {
		return err
	}
	// The names of passed tests are left out.
	rows := res.Rows
	err := readGoTest(stdout, all, res)
	if res.State == stateOK {
		res.Rows = rows
	}
	return err
}

// readText makes a row of the last line.
func readText(stdout, _ []byte, res *stepResult) error {
	line, err := json.Marshal(struct {
		Row string `json:"row"`
	}{lastLine(stdout)})
	res.Rows = append(res.Rows, line)
	return err
}

var (
	gtestPassed = regexp.MustCompile(`(?m)^\[  PASSED  \] (\d+) test`)
	gtestFailed = regexp.MustCompile(`(?m)^\[  FAILED  \] ([\w./]+)(?: \(|,|$)`)
)

// readGTest parses the output of a GoogleTest program.
func readGTest(_, all []byte, res *stepResult) error {
	passed := 0
	if m := gtestPassed.FindSubmatch(all); m != nil {
		passed, _ = strconv.Atoi(string(m[1]))
	}
	var failed []string
	seen := map[string]bool{}
	for _, m := range gtestFailed.FindAllSubmatch(all, -1) {
		if name := string(m[1]); !seen[name] && strings.Contains(name, ".") {
			seen[name] = true
			failed = append(failed, name)
		}
	}
	return countTests(res, passed, failed, nil)
}

func countTests(res *stepResult, passed int, failed, skipped []string) error {
	line, err := json.Marshal(struct {
		Row     string `json:"row"`
		Passed  int    `json:"passed"`
		Failed  int    `json:"failed"`
		Skipped string `json:"skipped"`
	}{res.Step, passed, len(failed), strings.Join(skipped, " ")})
	if err != nil {
		return err
	}
	res.Rows = append(res.Rows, line)
	if len(failed) > 0 {
		res.fail(strings.Join(failed, " "))
	}
	if passed+len(failed) == 0 {
		return errors.New("no test ran, except those that were skipped")
	}
	return nil
}
