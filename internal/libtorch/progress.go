package libtorch

// A Progress receives the progress of Setup, and the command displays it. Its methods are called from several
// goroutines.
type Progress interface {
	// Note prints a line that stays.
	Note(format string, args ...any)
	// Start begins a task that takes time. total is 0 if it is unknown.
	Start(what string, total int64, unit Unit) Task
}

// A Task is returned by Start.
type Task interface {
	SetTotal(total int64)
	Set(done int64)
	// End ends the task; err is nil if it is complete.
	End(err error)
}

// A Unit is the unit in which a Task counts.
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
