//! The users of a session, and the rules of early requests that depend on them.
//!
//! A gateway makes early requests at the far end of a slow path, for many users. Without a gateway,
//! the user's own process makes them, with the browser's cookies and from its address. Such a
//! process knows more about its browser, and leaves more requests to it.

/// The users of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// The users of a gateway, who share what it learns.
    #[default]
    Shared,
    /// The one user of the process that the session is in. The needs of a page's last visit are
    /// requested together with the page.
    OneUser,
    /// The same user, if early requests repeat only requests that the browser itself has made for
    /// the page before, in this session.
    OwnRequestsOnly,
}

impl Audience {
    const fn is_one_user(self) -> bool {
        matches!(self, Self::OneUser | Self::OwnRequestsOnly)
    }

    const fn repeats_own_requests_only(self) -> bool {
        matches!(self, Self::OwnRequestsOnly)
    }

    /// Returns whether resources are requested because a page names them.
    pub(super) const fn trusts_page_names(self) -> bool {
        !self.repeats_own_requests_only()
    }

    /// Returns whether the policies of documents decide on early requests. Requests that the
    /// browser has made itself obey these policies already.
    pub(super) const fn applies_policies(self) -> bool {
        !self.repeats_own_requests_only()
    }

    /// Returns whether every request of the browser for a resource is remembered for the next
    /// visit. Otherwise only requests for files that are the same at each visit are remembered.
    pub(super) const fn learns_all_requests(self) -> bool {
        self.repeats_own_requests_only()
    }

    /// Returns whether a document counts as a visit only if the browser says that a tab shows it.
    pub(super) const fn visits_in_tabs_only(self) -> bool {
        self.repeats_own_requests_only()
    }

    /// Returns whether all resources of another site wait until the client has requested something
    /// from their host. Otherwise style sheets and fonts do not wait.
    pub(super) const fn waits_for_foreign_hosts(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether the target of a document's redirect is left to the browser, which requests
    /// it at once. A target may be good for one request only.
    pub(super) const fn leaves_redirects(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether lazy resources that a page names are left to the browser at the first visit.
    pub(super) const fn leaves_lazy_needs(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether the fetches of earlier pages are given up when the browser visits another.
    pub(super) const fn ends_left_pages(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether a fetch of a page that was left begins if a request waits for it. The
    /// request may be that of another tab.
    pub(super) const fn serves_left_pages(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether early requests follow every change of the browser's cookies.
    pub(super) const fn follows_cookies(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether the session remembers the visits of its user, and the copies that they left
    /// in the browser's cache.
    pub(super) const fn remembers_visits(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether a check replaces the push of a resource that the browser must validate.
    pub(super) const fn checks_known_copies(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether the caller repeats requests that an origin refuses because of their number.
    pub(super) const fn repeats_refused_requests(self) -> bool {
        self.is_one_user()
    }

    /// Returns whether the client's half is in the same process, and therefore takes promises of
    /// HEAD.
    pub(super) const fn is_in_one_process(self) -> bool {
        self.is_one_user()
    }
}
