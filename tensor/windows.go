package tensor

import "math"

// The windows of torch.signal.windows have m values, float32 or float64. If sym, PyTorch's argument of that name (true
// by default there), is true, a window is symmetric, for filters; otherwise it is periodic, for spectra.

// SignalWindowsBartlett returns the triangular window, which is 0 at the ends. Options: DType, Device. PyTorch:
// torch.signal.windows.bartlett.
func SignalWindowsBartlett(m int, sym bool, opts ...Option) *Tensor {
	return window("SignalWindowsBartlett", m, opts, func(DType) *Tensor {
		if m == 1 {
			return Ones([]int{1}, opts...)
		}
		step := 2 / period(m, sym)
		return line(m, -1, -1+float64(m-1)*step, opts).Abs().RSub(1)
	})
}

// SignalWindowsBlackman returns the Blackman window. Options: DType, Device. PyTorch: torch.signal.windows.blackman.
func SignalWindowsBlackman(m int, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsBlackman", m, []float64{0.42, 0.5, 0.08}, sym, opts)
}

// SignalWindowsCosine returns half a period of the sine. Options: DType, Device. PyTorch: torch.signal.windows.cosine.
func SignalWindowsCosine(m int, sym bool, opts ...Option) *Tensor {
	return window("SignalWindowsCosine", m, opts, func(DType) *Tensor {
		n := m
		if !sym && m > 1 {
			n++
		}
		step := math.Pi / float64(n)
		return line(m, 0.5*step, (0.5+float64(m-1))*step, opts).Sin()
	})
}

// SignalWindowsExponential returns exp(-|k|/tau) for the distances k from the middle. Options: DType, Device. PyTorch:
// torch.signal.windows.exponential, whose argument center does not exist here.
func SignalWindowsExponential(m int, tau float64, sym bool, opts ...Option) *Tensor {
	const op = "SignalWindowsExponential"
	if !(tau > 0) {
		return failed(refused(op, ErrArgument, "tau must be positive, got %v", tau))
	}
	return window(op, m, opts, func(DType) *Tensor {
		at := middle(m, sym)
		return line(m, -at/tau, (-at+float64(m-1))/tau, opts).Abs().Neg().Exp()
	})
}

// SignalWindowsGaussian returns the Gaussian window with standard deviation std. Options: DType, Device. PyTorch:
// torch.signal.windows.gaussian.
func SignalWindowsGaussian(m int, std float64, sym bool, opts ...Option) *Tensor {
	const op = "SignalWindowsGaussian"
	if !(std > 0) {
		return failed(refused(op, ErrArgument, "the standard deviation must be positive, got %v", std))
	}
	return window(op, m, opts, func(DType) *Tensor {
		at, step := middle(m, sym), 1/(std*math.Sqrt2)
		return line(m, -at*step, (-at+float64(m-1))*step, opts).Square().Neg().Exp()
	})
}

// SignalWindowsGeneralCosine returns the sum of cosines with the weights a, of which every second one is negated.
// Options: DType, Device. PyTorch: torch.signal.windows.general_cosine.
func SignalWindowsGeneralCosine(m int, a []float64, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsGeneralCosine", m, a, sym, opts)
}

// SignalWindowsGeneralHamming returns alpha - (1-alpha)*cos(k); PyTorch's default of alpha is 0.54. Options: DType,
// Device. PyTorch: torch.signal.windows.general_hamming.
func SignalWindowsGeneralHamming(m int, alpha float64, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsGeneralHamming", m, []float64{alpha, 1 - alpha}, sym, opts)
}

// SignalWindowsHamming returns the Hamming window. Options: DType, Device. PyTorch: torch.signal.windows.hamming.
func SignalWindowsHamming(m int, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsHamming", m, []float64{0.54, 1 - 0.54}, sym, opts)
}

// SignalWindowsHann returns the Hann window. Options: DType, Device. PyTorch: torch.signal.windows.hann.
func SignalWindowsHann(m int, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsHann", m, []float64{0.5, 0.5}, sym, opts)
}

// SignalWindowsKaiser returns the Kaiser window; PyTorch's default of beta is 12. Options: DType, Device. PyTorch:
// torch.signal.windows.kaiser.
func SignalWindowsKaiser(m int, beta float64, sym bool, opts ...Option) *Tensor {
	const op = "SignalWindowsKaiser"
	if !(beta >= 0) {
		return failed(refused(op, ErrArgument, "beta must not be negative, got %v", beta))
	}
	return window(op, m, opts, func(dtype DType) *Tensor {
		if m == 1 {
			return Ones([]int{1}, opts...)
		}
		if dtype == Float32 {
			beta = float64(float32(beta)) // otherwise the root below could be NaN
		}
		k := line(m, -beta, min(beta, -beta+float64(m-1)*2*beta/period(m, sym)), opts)
		end := FromScalar(beta, Float64).I0()
		return k.Square().RSub(beta * beta).Sqrt().I0().Div(end.To(dtype, k.Device()))
	})
}

// SignalWindowsNuttall returns the minimum 4-term Blackman-Harris window of Nuttall. Options: DType, Device. PyTorch:
// torch.signal.windows.nuttall.
func SignalWindowsNuttall(m int, sym bool, opts ...Option) *Tensor {
	return cosines("SignalWindowsNuttall", m, []float64{0.3635819, 0.4891775, 0.1365995, 0.0106411}, sym, opts)
}

// window checks the arguments that all windows have, and returns the result of f, which has the window's dtype.
func window(op string, m int, opts []Option, f func(DType) *Tensor) *Tensor {
	dtype := DefaultDType()
	for _, o := range opts {
		switch o := o.(type) {
		case DType:
			dtype = o
		case Device:
		default:
			return failed(refused(op, ErrArgument, "accepts a DType and a Device, got %s", optionName(o)))
		}
	}
	switch {
	case m < 0:
		return failed(refused(op, ErrArgument, "a window cannot have %d values", m))
	case dtype != Float32 && dtype != Float64:
		return failed(refused(op, ErrArgument, "a window is float32 or float64, not %v", dtype))
	case m == 0:
		return attributed(op, Empty([]int{0}, opts...))
	}
	return attributed(op, Tidy(func() *Tensor { return f(dtype) }))
}

// cosines returns the window that is a sum of cosines with the weights a.
func cosines(op string, m int, a []float64, sym bool, opts []Option) *Tensor {
	if len(a) == 0 {
		return failed(refused(op, ErrArgument, "there are no weights"))
	}
	return window(op, m, opts, func(DType) *Tensor {
		if m == 1 {
			return Ones([]int{1}, opts...)
		}
		k := line(m, 0, float64(m-1)*2*math.Pi/period(m, sym), opts)
		sum, sign := Full([]int{m}, a[0], opts...), -1.0
		for i, w := range a[1:] {
			sum = sum.Add_(k.Mul(float64(i + 1)).Cos_().Mul_(sign * w))
			sign = -sign
		}
		return sum
	})
}

func line(m int, from, to float64, opts []Option) *Tensor { return Linspace(from, to, m, opts...) }

// period returns the number of steps after which a window of m values repeats.
func period(m int, sym bool) float64 {
	if sym {
		m--
	}
	return float64(m)
}

// middle returns the place of a window's maximum.
func middle(m int, sym bool) float64 {
	if sym || m <= 1 {
		m--
	}
	return float64(m) / 2
}
