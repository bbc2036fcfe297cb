package kv

// KeepStaged sets Options.KeepImages; call it before Open.
func (s *Store) KeepStaged(images func() [][]byte) { s.opts.KeepImages = images }

// ReportDigests has report called with each digest that is taken; call it before
// Open.
func (s *Store) ReportDigests(report func(index uint64, digest []byte)) { s.digests.report = report }

// ReportDamage has report called where Options.OnDamage is, after it; call it
// before Open.
func (s *Store) ReportDamage(report func(error)) {
	also := s.opts.OnDamage
	s.opts.OnDamage = func(err error) {
		also(err)
		report(err)
	}
}
