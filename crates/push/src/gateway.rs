//! The gateway's half: the resources that the pages of one session need.
