// Package repotest holds tests about the repository itself: which package may
// import which, that ours builds when another module vendors it, and what must
// not lie in the tree. It has no other code.
package repotest
