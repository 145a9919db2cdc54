package intact

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Library returns a Damage unless a file is a shared library that contains all segments and the section table that its
// header lists. It takes one small read and needs no manifest.
func Library(path string) error {
	if runtime.GOOS != "linux" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &Damage{path, "is not a file"}
	}
	end, what := headerLength(file, info.Size())
	switch {
	case what != "":
		return &Damage{path, what}
	case end > uint64(info.Size()):
		return &Damage{path, fmt.Sprintf("is damaged: it has %d bytes, and its header says %d", info.Size(), end)}
	}
	return nil
}

// headerLength returns the length of the library according to its header, or what is wrong with the header.
func headerLength(file io.ReaderAt, size int64) (end uint64, what string) {
	const notOne = "is not a shared library"
	var h elf.Header64
	if read(file, 0, &h) != nil || string(h.Ident[:4]) != elf.ELFMAG {
		if size == 0 {
			return 0, "is damaged: it is empty"
		}
		return 0, notOne
	}
	if elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, "is a library for another kind of processor"
	}
	if elf.Type(h.Type) != elf.ET_DYN || int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phnum == 0 {
		return 0, notOne
	}
	const limit = 1 << 48 // so that sums do not overflow
	reach := func(offset, length uint64) {
		if offset > limit || length > limit {
			end = limit
			return
		}
		end = max(end, offset+length)
	}
	if h.Shnum > 0 {
		reach(h.Shoff, uint64(h.Shnum)*uint64(h.Shentsize))
	}
	programs := uint64(h.Phnum) * uint64(h.Phentsize)
	if reach(h.Phoff, programs); end > uint64(size) {
		return end, ""
	}
	segments := make([]elf.Prog64, h.Phnum)
	if read(file, int64(h.Phoff), segments) != nil {
		return 0, "is damaged: its header cannot be read"
	}
	for _, s := range segments {
		if elf.ProgType(s.Type) != elf.PT_NULL {
			reach(s.Off, s.Filesz)
		}
	}
	return end, ""
}

func read(file io.ReaderAt, at int64, v any) error {
	buf := make([]byte, binary.Size(v))
	if _, err := file.ReadAt(buf, at); err != nil {
		return err
	}
	return binary.Read(bytes.NewReader(buf), binary.LittleEndian, v)
}

// Closure lists the libraries that path needs, and those that they need in turn, as far as they are in the directories
// that the needing library searches first (see Needed). It ignores the needs of a library that it cannot read; Library
// reports what is wrong with it.
func Closure(path string) (all []string) {
	queue := []string{path}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		needed, err := Needed(next)
		if err != nil {
			continue
		}
		for _, lib := range needed {
			if !slices.Contains(all, lib) {
				all, queue = append(all, lib), append(queue, lib)
			}
		}
	}
	return all
}

// Needed lists the libraries that path needs and that are in the directories of its own RPATH or RUNPATH. Others belong
// to the system.
func Needed(path string) ([]string, error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	lib, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer lib.Close()
	names, err1 := dynamic(lib, elf.DT_NEEDED)
	rpath, err2 := dynamic(lib, elf.DT_RPATH)
	runpath, err3 := dynamic(lib, elf.DT_RUNPATH)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	// $ORIGIN is the directory of the path, also if the path is a symbolic link to a library in another one. Links in the
	// directory itself are followed, because a ".." after $ORIGIN is the parent of what they lead to.
	origin := filepath.Dir(path)
	if real, err := filepath.EvalSymlinks(origin); err == nil {
		origin = real
	}
	expand := strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin)
	var found []string
	for _, name := range names {
		for _, dir := range strings.Split(strings.Join(append(runpath, rpath...), ":"), ":") {
			if dir = expand.Replace(dir); !filepath.IsAbs(dir) {
				continue
			}
			at := filepath.Join(dir, name)
			if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() {
				found = append(found, at)
				break
			}
		}
	}
	return found, nil
}

// SONAME returns the name by which a library is opened, or "" if it has none.
func SONAME(path string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", nil
	}
	lib, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer lib.Close()
	names, err := dynamic(lib, elf.DT_SONAME)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[0], nil
}

// dynamic reads strings of the dynamic section. elf.File.DynString reads the whole string table for that, which is tens
// of megabytes in libtorch.
func dynamic(lib *elf.File, tag elf.DynTag) ([]string, error) {
	offsets, err := lib.DynValue(tag)
	if err != nil || len(offsets) == 0 {
		return nil, err
	}
	section := lib.SectionByType(elf.SHT_DYNAMIC)
	if section == nil || int(section.Link) >= len(lib.Sections) {
		return nil, errors.New("no table of dynamic strings")
	}
	table := lib.Sections[section.Link]
	var all []string
	for _, at := range offsets {
		buf := make([]byte, 4096)
		n, err := table.ReadAt(buf, int64(at))
		end := bytes.IndexByte(buf[:n], 0)
		if end < 0 {
			return nil, fmt.Errorf("a dynamic string at %d has no end (%w)", at, err)
		}
		all = append(all, string(buf[:end]))
	}
	return all, nil
}
