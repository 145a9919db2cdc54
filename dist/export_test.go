package dist

// Calls returns the number of calls that use s.
func Calls(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}
