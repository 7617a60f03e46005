# prelude: gcl
