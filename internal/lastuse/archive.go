package lastuse

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// entryName is the name of the archive entry that holds the facts of a package and of its imports. The linker
// skips entries whose names are short and end neither in .o nor in .syso, and the compiler reads only the first
// entry.
const entryName = "lastuse.facts"

const (
	archiveMagic = "!<arch>\n"
	headerSize   = 60
)

// readEntry returns the facts in an archive, or nil if it has none.
func readEntry(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	magic := make([]byte, len(archiveMagic))
	if _, err := io.ReadFull(f, magic); err != nil || string(magic) != archiveMagic {
		return nil, nil //nolint:nilerr // no archive has no facts
	}
	header := make([]byte, headerSize)
	for at := int64(len(magic)); ; {
		if n, err := f.ReadAt(header, at); n < headerSize {
			if err == io.EOF {
				return nil, nil
			}
			return nil, err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(header[48:58])), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s is not an archive: %w", name, err)
		}
		if strings.TrimRight(string(header[:16]), " /") == entryName {
			data := make([]byte, size)
			_, err := f.ReadAt(data, at+headerSize)
			return data, err
		}
		at += headerSize + size + size&1
	}
}

// appendEntry adds facts to an archive.
func appendEntry(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	header := fmt.Sprintf("%-16s%-12d%-6d%-6d%-8o%-10d`\n", entryName, 0, 0, 0, 0o644, len(data))
	data = append([]byte(header), data...)
	if len(data)&1 == 1 {
		data = append(data, '\n')
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
