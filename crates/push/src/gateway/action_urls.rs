//! URLs of documents whose requests may have effects at their origins.
//!
//! Many sites change their state at GET: a vote, a logout, an entry in a cart. A browser makes such
//! a request after a click only. So the rules refuse a URL if in doubt.

/// The words that mark an action wherever they stand in a segment of a path. Separators within the
/// segment do not count.
const ACTIONS: [&str; 18] = [
    "logout",
    "logoff",
    "signout",
    "signoff",
    "unsubscribe",
    "optout",
    "delete",
    "remove",
    "destroy",
    "confirm",
    "activate",
    "approve",
    "reject",
    "cancel",
    "checkout",
    "downvote",
    "upvote",
    "addto",
];

/// The words that mark an action as a whole word of a segment.
const WORDS: [&str; 20] = [
    "add",
    "buy",
    "clear",
    "disable",
    "do",
    "edit",
    "enable",
    "erase",
    "follow",
    "like",
    "purge",
    "report",
    "reset",
    "revoke",
    "subscribe",
    "unfollow",
    "unlike",
    "update",
    "verify",
    "vote",
];

/// Returns whether the request for a document with this URL may have effects, as far as the URL
/// shows it.
pub(super) fn may_act(url: &str) -> bool {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = path.split_once('/').map_or("", |(_, path)| path);
    path.contains('?') || escapes_letter(path) || path.split('/').any(names_action)
}

/// Returns whether an escape may stand for an ASCII letter, which needs none.
fn escapes_letter(path: &str) -> bool {
    let mut escapes = path.split('%').skip(1);
    escapes.any(|escape| escape.starts_with(['4', '5', '6', '7']))
}

fn names_action(segment: &str) -> bool {
    let mut words = String::with_capacity(segment.len());
    let mut was_lower = false;
    for letter in segment.chars() {
        // `addItem` has two words.
        if was_lower && letter.is_ascii_uppercase() {
            words.push('-');
        }
        was_lower = letter.is_ascii_lowercase();
        words.push(letter.to_ascii_lowercase());
    }
    let is_separator = |letter: char| letter.is_ascii() && !letter.is_ascii_alphanumeric();
    if words.split(is_separator).any(|it| WORDS.contains(&it)) {
        return true;
    }
    let joined = words.replace(is_separator, "");
    ACTIONS.iter().any(|it| joined.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_urls_have_queries_or_words_of_actions() {
        for (path, expected) in [
            ("", false),
            ("/", false),
            ("/second", false),
            ("/cart/addItem", true),
            ("/voteUp", true),
            ("/likePost", true),
            ("/log%6Fut", true),
            ("/NewsToday", false),
            ("/2024/01/news-of-the-day.html", false),
            ("/wiki/%C3%84pfel", false),
            ("/address/download", false),
            ("/vote?id=3", true),
            ("/second?", true),
            ("/logout", true),
            ("/account/Log-Out.php", true),
            ("/users/sign_out", true),
            ("/list/unsubscribe/7", true),
            ("/posts/7/delete", true),
            ("/deleteItem/7", true),
            ("/cart/add/7", true),
            ("/item/7/vote", true),
            ("/vote.php", true),
        ] {
            assert_eq!(
                may_act(&format!("http://vote.test{path}")),
                expected,
                "{path}"
            );
        }
    }
}
