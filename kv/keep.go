package kv

// KeepStaged sets Options.KeepImages; call it before Open.
func (s *Store) KeepStaged(images func() [][]byte) { s.opts.KeepImages = images }

// ReportDamage has report called where Options.OnDamage is, after it; call it
// before Open.
func (s *Store) ReportDamage(report func(error)) {
	also := s.opts.OnDamage
	s.opts.OnDamage = func(err error) {
		also(err)
		report(err)
	}
}
