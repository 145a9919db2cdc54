// Package lastuse rewrites Go source so that each tensor is released after its last use. Command "linstock go" applies it
// to the packages that the go command compiles; "linstock lastuse" explains its decisions. See
// docs/decisions/0018-release-at-last-use.md for the reasons.
//
// # Definitions
//
// A handle is a *tensor.Tensor that is not nil. It owns one reference to a native tensor. To release a handle gives that
// reference back; a use of the handle after that returns tensor.ErrReleased. Values cannot change by a release: the
// autograd graph, views and running operators have references of their own.
//
// A place is a variable or parameter that can hold handles during one call of a function. Its type is *tensor.Tensor,
// []*tensor.Tensor (it holds the elements), a struct (it holds those of its fields that are tensors, slices of tensors
// or such structs; the package may name each of them, and no field's type has a type parameter), or a type that can
// carry a handle: an option, an empty interface, a type parameter, a function. A variable is not a place if its address
// is taken, even by a method with a pointer receiver, or if a function literal assigns it or a part of it, keeps it
// after the call that the literal is given to, or passes it on, or if it is a named result of a function that defers a
// call, which may recover from a panic. The body of a function literal is a function of its own, in which the captured
// variables are not places. A literal that a range loop is over counts as kept: the loop's body runs between two parts
// of it.
//
// A temporary is the result of a call that is an operand of another call. A discarded result is one that no variable holds:
// it is assigned to _ or compared, or the call is a statement.
//
// A place is live at a point if some path from there reads it before it is assigned. The header of a range loop is a
// place that is live while the loop runs. If it is a slice that a call returns, a new variable holds it.
//
// Two places are linked at a point if both may hold the same handle. The relation is symmetric; a place that is assigned
// from others is linked to them and to all that those are linked to.
//
// A place is owned at a point if its handles, if any, were made during this call of the function and no variable but the
// function's places holds them. Owned is yes, no or maybe; a boolean variable of the function (a drop flag) decides maybe
// while the program runs.
//
// The facts of a function say for each parameter, the receiver being the first, whether the handles in it are borrowed
// (not kept after the call, except in a result) or retained; and for each result whether its handles are new, may be
// those of certain parameters, or may be others. The facts of package tensor and of the other packages of the library
// are a table (library.go); those of other functions are computed from their source, those of a package's imports
// first. Functions of one package are computed together, from "borrowed" and "new" up to the least fixed point. A
// function without facts retains its arguments, and its results may be anything.
//
// The method Forward of nn.Layer has facts by contract: it borrows its argument, and returns a new handle or its
// argument. The analyzer layercontract of package vet reports implementations that break it. A type whose Forward has such
// facts by its source is made known to nn.Pipe (tensor.LastUseLayer, in an init function), which then releases what the
// layer returns.
//
// # Invariants
//
// A release of place v is inserted at a point only if all of these hold there:
//
//  1. v is not live.
//  2. v is owned; where that is maybe, the release is under v's flag.
//  3. Each live place w that is linked to v is a variable in scope that holds tensors, perhaps in elements or fields,
//     and the release compares: it does nothing to a handle that w holds, or that is in the array of a slice after the
//     slice's end. Only one slice is compared. Otherwise v is left for a later point.
//  4. v's name means v.
//
// v becomes not owned when v or a place linked to it escapes: when it is stored, sent, captured, returned, or given to
// a function that retains it, or put, also by append, into the array of a slice that others may have. It also becomes
// not owned when a handle that is not owned is put into an array that v may share. v is then left to scopes and sweeps.
// So are functions with goto, functions too large to analyse, and handles in maps, arrays, channels, package variables
// and behind pointers.
//
// An assignment releases the handles that the place held before, under the same conditions; not those of a slice if the
// statement also assigns an element of its array. An assignment to an element or field releases the handle before if, in
// addition, no other element or field holds it. The index of such an element must have the same value after the statement's
// calls. A statement that assigns several values releases the handles that elements held before only if every other left
// side is a variable that it assigns before the elements, or one that no code reads if the assignment of an element panics.
//
// A temporary is released when the call that it is an operand of has returned, unless that call returned the same handle.
// If a result that is not a tensor may hold it, it is released when the call that borrows that result has returned or,
// if there is no such call or the call has several results, after the statement. No temporary is held while another,
// possibly long, call of the statement runs: a sweep could not free it. A temporary that may be an operand of its own
// call is compared: with variables, or with elements and fields as they were before that call.
//
// A slice of which a part is kept escapes. Where s[:len(s)-1] is assigned to s and nothing else sees the array, the element
// after the end is cleared instead.
//
// A discarded result is released after its statement if its handle is new; one of several results of a call only if the
// call's facts say that it is always new.
//
// # The inserted text
//
// The inserted calls are of methods of *tensor.Tensor (tensor/lastuse.go), and of one function around calls that return
// no tensor, so that a file needs an import only where temporaries are stored:
//
//	x.MatMul(w).Add(b)
//	x.MatMul(w).LastUseHold(&t1).Add(b).LastUseOf("main.go:7", &t1)
//
//	train(mean(load()))
//	train(tensor.LastUseAfter(mean(load().LastUseHold(&t1)), "main.go:8", &t1))
//
// A statement that assigns several values gives new variables to elements, which one statement after it assigns, in their
// order:
//
//	e1, e2 = cell(x, h[l], c[l]); h[l], c[l] = e1.LastUseElement("main.go:9", h, l), e2.LastUseElement("main.go:9", c, l)
//
// Temporaries are stored where they are computed. No call moves, so that the order of evaluation is the program's. The
// values of a return statement are stored in new variables, from left to right, where something is to be released after
// they are computed and the other operands are constants or local variables.
//
// All text is inserted within lines, and a //line directive at the top names the user's file: the lines in panics,
// errors, profiles and debuggers are the user's.
package lastuse
