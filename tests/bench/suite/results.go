package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// A record is what a cell measured; a kind of cell fills some of the fields.
type record struct {
	Losses  []float64            `json:",omitempty"`
	Start   float64              `json:",omitempty"` // seconds from the start of the process to the end of the first step
	Library float64              `json:",omitempty"` // KiB resident before the workload is made
	Peak    float64              `json:",omitempty"` // KiB resident at most
	Times   map[string][]float64 `json:",omitempty"` // nanoseconds by arm, one a turn
	Builds  []float64            `json:",omitempty"` // seconds
	Bytes   int64                `json:",omitempty"` // of the program
	Day     string               `json:",omitempty"` // when it was measured, such as 2026-01-31
}

// results are records by cell, kept in a file to which each is added as it comes.
type results struct {
	records map[string]record
	file    *os.File
}

type line struct {
	Key    string `json:",omitempty"`
	Cell   string `json:",omitempty"`
	Record record `json:",omitzero"`
}

// openResults opens the file of results. It keeps those of an earlier run with the same key.
func openResults(path, key string) (r *results, err error) {
	kept := readResults(path, key)
	r = &results{records: map[string]record{}}
	// Write them anew: the last line may have been cut off.
	if r.file, err = os.Create(path); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(r.file).Encode(line{Key: key}); err != nil {
		return nil, err
	}
	for cell, rec := range kept {
		if err := r.add(cell, rec); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// key identifies the programs, the machine and the settings that make a difference.
func (o options) key() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sources, err := filepath.Glob("tests/bench/suite/py/*.py")
	if err != nil {
		return "", err
	}
	// py/text.py takes its GPT from arm.py.
	for _, path := range append(sources, "tests/bench/arm.py", self, filepath.Join(filepath.Dir(self), "cpp", "suite")) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	fmt.Fprintln(sum, runtime.NumCPU(), processor(), o.turns, o.steps, os.Getenv("LINSTOCK_TORCH"), os.Getenv("LINSTOCK_LIB"))
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// readResults returns the records of a file with this key.
func readResults(path, key string) map[string]record {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	records := map[string]record{}
	for d, first := json.NewDecoder(f), true; ; first = false {
		var l line
		if d.Decode(&l) != nil {
			return records
		}
		if first && l.Key != key {
			return nil
		}
		if !first {
			records[l.Cell] = l.Record
		}
	}
}

func (r *results) has(cell string) bool {
	_, ok := r.records[cell]
	return ok
}

// add adds a record. One that is kept from an earlier run has its day.
func (r *results) add(cell string, rec record) error {
	if rec.Day == "" {
		rec.Day = time.Now().Format(time.DateOnly)
	}
	r.records[cell] = rec
	return json.NewEncoder(r.file).Encode(line{Cell: cell, Record: rec})
}

// days returns the day of the records, or the first and the last one.
func (r *results) days() string {
	var all []string
	for _, rec := range r.records {
		all = append(all, rec.Day)
	}
	if len(all) == 0 {
		return ""
	}
	first, last := slices.Min(all), slices.Max(all)
	if first == last {
		return first
	}
	return first + " to " + last
}

func (r *results) close() { _ = r.file.Close() }
