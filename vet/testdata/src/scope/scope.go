package scope

import (
	"errors"
	"sync"

	"github.com/linstock-ml/linstock/tensor"
)

func never() error {
	s, err := tensor.NewScope() // want `the scope is never closed`
	if err != nil {
		return err
	}
	s.Len()
	return nil
}

func unnamed() {
	_, _ = tensor.NewScope() // want `the scope is never closed`
}

func deferred() error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer s.Close()
	return nil
}

func inLiteral() (err error) {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	return nil
}

func onePath(early bool) error {
	s, err := tensor.NewScope() // want `the scope is not closed on all paths`
	if err != nil {
		return err
	}
	if early {
		return errors.New("early")
	}
	return s.Close()
}

// A check of a later error does not check this one.
func laterError(f func() error) (err error) {
	s, err := tensor.NewScope() // want `the scope is not closed on all paths`
	if err != nil {
		return err
	}
	if err = f(); err != nil {
		return err
	}
	defer func() { err = s.Close() }()
	return nil
}

func loop(n int) error {
	for range n {
		s, err := tensor.NewScope()
		if err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

func loopLeaks(n int) error {
	for i := range n {
		s, err := tensor.NewScope() // want `the scope is not closed on all paths`
		if err != nil {
			return err
		}
		if i == 3 {
			continue
		}
		_ = s.Close()
	}
	return nil
}

func returned() (*tensor.Scope, error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	return s, nil
}

type holder struct{ s *tensor.Scope }

func stored(h *holder) (err error) {
	h.s, err = tensor.NewScope()
	return err
}

func given(f func(*tensor.Scope)) {
	s, err := tensor.NewScope()
	if err != nil {
		return
	}
	f(s)
}

func elsewhere() error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	go func() {
		_ = s.Close() // want `the scope is closed on another goroutine`
	}()
	return nil
}

func elsewhere2(wg *sync.WaitGroup) error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer s.Close()
	wg.Go(func() { _ = s.Close() }) // want `the scope is closed on another goroutine`
	return nil
}

func elsewhere3() error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	go s.Close() // want `the scope is closed on another goroutine`
	return nil
}

func ownGoroutine() {
	go func() {
		s, err := tensor.NewScope()
		if err != nil {
			return
		}
		defer s.Close()
	}()
}

// refused: there is no scope to close.
func refused() error {
	s, err := tensor.NewScope()
	if errors.Is(err, tensor.ErrScope) {
		return errors.New("busy")
	}
	if e := new(tensor.Error); errors.As(err, &e) {
		return e
	}
	if s == nil {
		return err
	}
	return s.Close()
}

// Others than ErrScope are not excluded.
func notRefused() error {
	s, err := tensor.NewScope() // want `the scope is not closed on all paths`
	if !errors.Is(err, tensor.ErrScope) {
		return err
	}
	return s.Close()
}

func methodValue() error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	closeScope := s.Close
	defer closeScope()
	return nil
}

func methodValueElsewhere() error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	closeScope := s.Close // want `the scope is closed on another goroutine`
	go closeScope()
	return nil
}

// deferredFirst closes what the variable holds when the function ends.
func deferredFirst() (err error) {
	var s *tensor.Scope
	defer func() {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s, err = tensor.NewScope(); err != nil {
		return err
	}
	return nil
}

func deferredOnce(n int) (err error) {
	var s *tensor.Scope
	defer func() { err = errors.Join(err, s.Close()) }()
	for range n {
		if s, err = tensor.NewScope(); err != nil { // want `the scope is not closed on all paths`
			return err
		}
	}
	return nil
}

// deferredNil closes what the variable holds at the defer.
func deferredNil() (err error) {
	var s *tensor.Scope
	closeScope := s.Close
	defer closeScope()
	defer func() { s.Len() }()
	if s, err = tensor.NewScope(); err != nil { // want `the scope is not closed on all paths`
		return err
	}
	return nil
}

// secondTest: a deferred literal captures err, which makes it a variable.
func secondTest(f func() error) (err error) {
	s, err := tensor.NewScope()
	if errors.Is(err, tensor.ErrScope) {
		return errors.New("busy")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f()
}

// A check of an error that a literal stores does not check this one.
func literalError(f func() error, run func(func())) (err error) {
	s, err := tensor.NewScope() // want `the scope is not closed on all paths`
	if err != nil {
		return err
	}
	run(func() { err = f() })
	if err != nil {
		return err
	}
	return s.Close()
}

func asType() error {
	s, err := tensor.NewScope()
	if e, ok := errors.AsType[*tensor.Error](err); ok {
		return e
	}
	if err != nil {
		return err
	}
	return s.Close()
}

// literalOpens opens the scope in a literal, and closes it outside.
func literalOpens() error {
	var s *tensor.Scope
	open := func() (err error) {
		s, err = tensor.NewScope()
		return err
	}
	if err := open(); err != nil {
		return err
	}
	defer s.Close()
	return nil
}

func literalOpensOnly() (err error) {
	var s *tensor.Scope
	open := func() { s, err = tensor.NewScope() } // want `the scope is never closed`
	open()
	s.Len()
	return err
}

func literalOpensElsewhere(run func(func())) {
	var s *tensor.Scope
	var err error
	run(func() { s, err = tensor.NewScope() })
	if err == nil {
		go func() { _ = s.Close() }() // want `the scope is closed on another goroutine`
	}
}

// literalCloses opens and closes the scope on one goroutine, in a variable from outside.
func literalCloses() {
	var s *tensor.Scope
	go func() {
		var err error
		if s, err = tensor.NewScope(); err != nil {
			return
		}
		defer s.Close()
	}()
	s.Len()
}

func literalMayClose(early bool) {
	var s *tensor.Scope
	go func() {
		var err error
		s, err = tensor.NewScope() // want `the scope is not closed on all paths`
		if err != nil || early {
			return
		}
		_ = s.Close()
	}()
	s.Len()
}
