package libtorch

// A Progress is told what Setup does; the command draws it. Its methods are
// called from several goroutines.
type Progress interface {
	// Note is a line that stays.
	Note(format string, args ...any)
	// Start begins something that takes time. total is 0 where it is unknown.
	Start(what string, total int64, unit Unit) Task
}

// A Task is what Start began.
type Task interface {
	SetTotal(total int64)
	Set(done int64)
	// End closes the task; a nil error means that it is complete.
	End(err error)
}

// A Unit is what a Task counts.
type Unit int

// The units.
const (
	Bytes Unit = iota
	Steps
)

type silent struct{}

func (silent) Note(string, ...any)            {}
func (silent) Start(string, int64, Unit) Task { return silent{} }
func (silent) SetTotal(int64)                 {}
func (silent) Set(int64)                      {}
func (silent) End(error)                      {}
