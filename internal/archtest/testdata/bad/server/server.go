package server

// Commented is fine.
func Commented() {}

func hidden() {}

type private struct{ Field int }

func (private) Method() {}
func Bare()             {}

// Options has fields.
type Options struct{ Lone int }

// LimitOptions of something.
type LimitOptions struct {
	// First and Second share a comment.
	First, Second int
	Third         int
	Fourth        int // behind

	hidden int

	Fifth int
}

// Status has fields that this comment explains.
type Status struct{ Name string }

// Doer has methods.
type Doer interface {
	Do()
	// Done is fine.
	Done()
}

type Kind int

// Kinds share a comment.
const (
	A Kind = iota
	B
)
const C Kind = 9

// Method is fine.
func (*Options) Method() {}
func (Options) Bare()    {}
