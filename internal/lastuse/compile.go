package lastuse

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// EnvStrict, if set in the environment, makes it an error if a package cannot be rewritten or its rewritten source does
// not compile. Otherwise such a package is compiled without the rewrite.
const EnvStrict = "LINSTOCK_LASTUSE_STRICT"

// IsTool reports whether a command line is one that the go command passes to -toolexec: the absolute path of a
// program and its arguments.
func IsTool(args []string) bool { return len(args) > 0 && filepath.IsAbs(args[0]) }

func toolName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".exe") }

// RunTool runs a tool of the go command; it runs the compiler on rewritten sources. It returns the exit code.
func RunTool(args []string) int {
	code, err := runTool(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "linstock:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

func runTool(args []string) (int, error) {
	if toolName(args[0]) != "compile" {
		return plain(args)
	}
	if len(args) == 2 && args[1] == "-V=full" {
		return version(args)
	}
	c, err := parseCompile(args)
	if err != nil || c == nil {
		return plain(args)
	}
	if c.path == tensorPath {
		if err := sameFacts(args[c.files:]); err != nil {
			return 1, err
		}
		return plain(args)
	}
	return c.run()
}

// sameFacts returns an error if the sources of package tensor are those of a version of the module whose facts differ from
// this program's. Functions that newly keep a tensor would be taken for functions that borrow it.
func sameFacts(sources []string) error {
	for _, name := range sources {
		if base := filepath.Base(name); base != "facts_gen.go" && base != "facts_gen.cover.go" { // -cover compiles a copy
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte(strconv.Quote(factsVersion))) {
			return nil
		}
	}
	return fmt.Errorf("this linstock and the program are of different versions of %s: in the program's module, run: go install %[1]s/cmd/linstock", Module)
}

// plain runs a command unchanged.
func plain(args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return exit(cmd.Run())
}

func exit(err error) (int, error) {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return max(e.ExitCode(), 1), nil
	}
	return 0, err
}

// version prints the compiler's version with a hash of this program, so that the build cache distinguishes the
// output of each version of the rewrite.
func version(args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return exit(err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	f, err := os.Open(self)
	if err != nil {
		return 1, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return 1, err
	}
	// For a development version of Go the go command uses only the last word, which is the compiler's build ID.
	separator := " linstock-"
	if strings.Contains(string(out), "buildID=") {
		separator = "-linstock-"
	}
	fmt.Printf("%s%s%x\n", strings.TrimSpace(string(out)), separator, h.Sum(nil)[:12])
	return 0, nil
}

// compilation is one run of the compiler.
type compilation struct {
	args   []string // the command line, the compiler first
	files  int      // index of the first source file; the rest are source files
	output string
	path   string
	lang   string
	config string // the importcfg file

	archives map[string]string // import path to archive
	renamed  map[string]string // import path in the source to package path
}

// parseCompile parses the compiler's arguments. It returns nil for a package that is not rewritten, except for package tensor.
func parseCompile(args []string) (*compilation, error) {
	c := &compilation{args: args, files: len(args), archives: map[string]string{}, renamed: map[string]string{}}
	for c.files > 1 && strings.HasSuffix(args[c.files-1], ".go") {
		c.files--
	}
	for i := 1; i < c.files; i++ {
		name, value, ok := strings.Cut(args[i], "=")
		if !ok && i+1 < c.files {
			value = args[i+1]
		}
		switch name {
		case "-o":
			c.output = value
		case "-p":
			c.path = value
		case "-lang":
			c.lang = value
		case "-importcfg":
			c.config = value
		case "-std":
			return nil, nil
		}
	}
	if c.output == "" || c.config == "" || c.files == len(args) || Core(c.path) && c.path != tensorPath {
		return nil, nil
	}
	data, err := os.ReadFile(c.config)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		from, to, ok := strings.Cut(rest, "=")
		switch {
		case ok && verb == "packagefile":
			c.archives[from] = to
		case ok && verb == "importmap":
			c.renamed[from] = to
		}
	}
	return c, nil
}

func (c *compilation) run() (int, error) {
	imported := Facts{}
	seen := false
	for path, archive := range c.archives {
		if Core(path) {
			seen = true
			continue
		}
		data, err := readEntry(archive)
		if err != nil {
			return 1, err
		}
		if data == nil {
			continue
		}
		seen = true
		if err := imported.Decode(data); err != nil {
			return 1, fmt.Errorf("the facts in %s: %w", archive, err)
		}
	}
	if !seen {
		return plain(c.args)
	}
	p, err := c.load()
	if err != nil {
		// The compiler reports syntax and type errors. If it finds none, it knows more of Go than this program.
		if code, err := plain(c.args); code != 0 || err != nil {
			return code, err
		}
		err = fmt.Errorf("package %s is compiled without releases: %w; the compiler finds no error: build linstock with the compiler's version of Go", c.path, err)
		if os.Getenv(EnvStrict) != "" {
			return 1, err
		}
		fmt.Fprintln(os.Stderr, "linstock:", err)
		return 0, nil
	}
	p.Imports = imported
	own, sources, err := c.rewrite(p)
	if err != nil {
		fmt.Fprintf(os.Stderr, "linstock: package %s is compiled without releases: %v\n", c.path, err)
		return plain(c.args)
	}
	if id := p.taken; id != nil {
		err := fmt.Errorf("package %s is compiled without releases: inserted text needs the name %s, which %v uses",
			c.path, id.Name, p.Fset.Position(id.Pos()))
		if os.Getenv(EnvStrict) != "" {
			return 1, err
		}
		fmt.Fprintln(os.Stderr, "linstock:", err)
	}
	args, err := c.write(p, sources)
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(args[0], args[1:]...)
	var report bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, &report
	code, err := exit(cmd.Run())
	switch {
	case err != nil:
		return code, err
	case code != 0 && os.Getenv(EnvStrict) == "":
		if code, err = plain(c.args); code != 0 || err != nil {
			return code, err
		}
		fmt.Fprintf(os.Stderr, "linstock: package %s is compiled without releases: the rewritten source does not compile: this is a bug in linstock go\n%s",
			c.path, &report)
	default:
		if _, err := os.Stdout.Write(report.Bytes()); err != nil || code != 0 {
			return code, err
		}
	}
	for name, f := range own {
		imported[name] = f
	}
	data, err := imported.Encode()
	if err != nil {
		return 1, err
	}
	return 0, appendEntry(c.output, data)
}

// recovered, deferred, turns a panic into an error with the given message: the package compiles without the rewrite.
func recovered(err *error, message string) {
	if os.Getenv(EnvStrict) != "" {
		return // the panic shows where it happened
	}
	if r := recover(); r != nil {
		*err = fmt.Errorf(message, r)
	}
}

// rewrite analyses the package and returns its facts and its rewritten sources.
func (c *compilation) rewrite(p *Package) (own Facts, sources [][]byte, err error) {
	defer recovered(&err, "the analysis failed: %v: this is a bug in linstock go")
	own = p.Analyze()
	sources, _ = p.Rewrite(c.archives[tensorPath] != "")
	return own, sources, nil
}

// load parses and type-checks the files of the compilation. The reader of export data panics if it does not know the
// version.
func (c *compilation) load() (p *Package, err error) {
	defer recovered(&err, "its imports cannot be read: %v")
	p = &Package{Fset: token.NewFileSet(), Info: NewInfo()}
	for _, name := range c.args[c.files:] {
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(p.Fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.Files, p.Sources = append(p.Files, f), append(p.Sources, src)
	}
	arch := os.Getenv("GOARCH")
	if arch == "" {
		arch = runtime.GOARCH
	}
	conf := types.Config{Importer: renaming{importer.ForCompiler(p.Fset, "gc", c.open), c}, GoVersion: c.lang, Sizes: types.SizesFor("gc", arch)}
	p.Types, err = conf.Check(c.path, p.Fset, p.Files, p.Info)
	return p, err
}

// open opens the archive of an imported package.
func (c *compilation) open(path string) (io.ReadCloser, error) {
	name := c.archives[path]
	if name == "" {
		return nil, fmt.Errorf("no archive for %q", path)
	}
	return os.Open(name)
}

// renaming imports packages under the names that the go command uses, for vendored packages of the standard
// library.
type renaming struct {
	types.Importer
	c *compilation
}

func (r renaming) Import(path string) (*types.Package, error) {
	if to := r.c.renamed[path]; to != "" {
		path = to
	}
	return r.Importer.Import(path)
}

// write writes the rewritten files beside the compiler's output and returns the arguments to compile them.
func (c *compilation) write(p *Package, sources [][]byte) ([]string, error) {
	args := append([]string(nil), c.args...)
	dir := filepath.Join(filepath.Dir(c.output), "linstock")
	for i, src := range sources {
		if src == nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
		name := c.args[c.files+i]
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, strconv.Itoa(i)+"_"+filepath.Base(name))
		src = append([]byte("//line "+abs+":1:1\n"), bytes.TrimPrefix(src, []byte("\xef\xbb\xbf"))...)
		if err := os.WriteFile(to, src, 0o666); err != nil {
			return nil, err
		}
		args[c.files+i] = to
	}
	return args, nil
}
