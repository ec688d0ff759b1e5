//! Scripts, and the imports of modules.

use tandem_preload::Scanner;

use crate::{SCRIPT, css, html, module, page, script};

#[test]
fn scripts() {
    page("<script src=a.js></script>", &["2 Script /news/a.js"]);
    page(
        "<head></head><script src=a.js></script>",
        &["3 Script /news/a.js"],
    );
    page("<body><script src=a.js></script>", &["3 Script /news/a.js"]);
    page(
        "<script defer src=a.js></script><script async src=b.js></script>",
        &["3 Script /news/a.js", "4 Script /news/b.js"],
    );
    page(
        "<script type=module src=m.js></script><script nomodule src=old.js></script>",
        &["3 Script /news/m.js"],
    );
    page(
        "<script type=module src=//cdn.test/m.js></script>",
        &["3 Script https://cdn.test/m.js anonymous"],
    );
    page(
        "<script crossorigin=use-credentials src=//cdn.test/m.js></script>",
        &["2 Script https://cdn.test/m.js"],
    );
    page(
        "<script async fetchpriority=high src=a.js></script>",
        &["3 Script /news/a.js"],
    );
    page(
        "<script type=' Text/JavaScript1.5 ' src=a.js></script><script type=application/x-javascript src=b.js></script>\
        <script type='' src=c.js></script><script language=JavaScript src=d.js></script>",
        &[
            "2 Script /news/a.js",
            "2 Script /news/b.js",
            "2 Script /news/c.js",
            "2 Script /news/d.js",
        ],
    );
    page(
        "<script type=application/json src=a.json></script><script type=text/template src=b></script>",
        &[],
    );
    page(
        "<script type='text/javascript; charset=x' src=a></script><script language=vbscript src=b></script>",
        &[],
    );
    page(
        "<script>document.write('<img src=a.png>')</script ><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script>if (a</script src=x.js><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script></scripts><img src=a.png></script/><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script><!-- <script> </script> <img src=a.png> --></script><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script><!-- x </script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!--><script></script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!-- <script --></script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!-- <script> </script> </script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
}

#[test]
fn imports_of_modules() {
    module("import './a.js'", &["3 Script /js/a.js"]);
    module(
        "import a from './a.js';import * as b from \"../b.js\"\nimport c, { d as e, default as f } from '/c.js'",
        &["3 Script /js/a.js", "3 Script /b.js", "3 Script /c.js"],
    );
    module(
        "import{a as b}from\"./c.js\";const x=1;import './late.js'",
        &["3 Script /js/c.js"],
    );
    module(
        "export * from './a.js'; export * as b from './b.js'; export { c, d as 'e e' } from './c.js'",
        &[
            "3 Script /js/a.js",
            "3 Script /js/b.js",
            "3 Script /js/c.js",
        ],
    );
    module("export { a }; import './b.js'", &["3 Script /js/b.js"]);
    module(
        "/* import './no.js' * / **/ // import './no.js'\r'use strict'; import'./a.js'",
        &["3 Script /js/a.js"],
    );
    module(
        "import data from './d.json' with { type: 'json' };\nimport s from './s.js' with { a: 'b', c: 'd' }\nimport './e.js'",
        &[
            "3 Script /js/d.json",
            "3 Script /js/s.js",
            "3 Script /js/e.js",
        ],
    );
    module(
        "\u{feff}import $a\u{e9} from 'https://cdn.test/a.js'",
        &["3 Script https://cdn.test/a.js anonymous"],
    );
    module(
        "import from from './from.js'; import defer * as d from './d.js'",
        &["3 Script /js/from.js", "3 Script /js/d.js"],
    );
    // Specifiers that need an import map, and imports that only running the script reveals.
    module(
        "import react from 'react'; import '#own'; import './a.js'",
        &["3 Script /js/a.js"],
    );
    for none in [
        "import('./a.js')",
        "import.meta.url; import './a.js'",
        "var a = 1; import './a.js'",
        "(function(){})(); import './a.js'",
        "export default 1; import './a.js'",
        "export const a = 1; import './a.js'",
        "import './a\\.js'",
        "import './a.js",
        "import a './a.js'",
        "import a = from './a.js'",
        "importx './a.js'",
        "Import './a.js'",
        "#!/usr/bin/env node\nimport './a.js'",
        "`import './a.js'`",
        "/import './a.js'/",
        "{ import './a.js' }",
        "<!-- import './a.js'",
        "import { a } './a.js'",
    ] {
        module(none, &[]);
    }
    page(
        "<script type=module>import './a.js'</script>",
        &["3 Script /news/a.js"],
    );
    page(
        "<base href=/b/><script type=module>\n import x from '//cdn.test/a.js';\nrun(x < 1)</script><img src=i.png>",
        &[
            "3 Script https://cdn.test/a.js anonymous",
            "4 Image /b/i.png",
        ],
    );
    page(
        "<script>import './a.js'</script><script type=importmap>{}</script>",
        &[],
    );
    page(
        "<template><script type=module>import './a.js'</script></template>",
        &[],
    );
    page("<script type=module><!-- \nimport './a.js'</script>", &[]);
    page(
        "<script type=module src=m.js>import './a.js'</script>",
        &["3 Script /news/m.js"],
    );
}

/// The first word that is neither an import nor an export ends the reading of a script.
#[test]
fn a_script_is_read_no_longer_than_it_imports() {
    let mut found = Vec::new();
    let mut scanner = script();
    scanner.feed(b"// a comment\nimport './a.js'\n", &mut found);
    assert!(!scanner.is_over() && found.len() == 1);
    assert_eq!(found[0].via.as_deref(), Some(SCRIPT));
    scanner.feed(b"let ", &mut found);
    assert!(scanner.is_over());
    assert!(!html().is_over() && !css().is_over());
}

fn reading(mut scanner: Scanner) -> Scanner {
    scanner.read_literals();
    scanner
}

/// Returns the literals of a document in pieces, and its base URL at the end.
fn literals(mut scanner: Scanner, text: &str, cut: usize) -> (Vec<String>, String) {
    let (mut needs, mut literals) = (Vec::new(), Vec::new());
    for piece in text.as_bytes().chunks(cut) {
        scanner.feed(piece, &mut needs);
        literals.append(&mut scanner.take_literals());
    }
    (literals, scanner.base().to_owned())
}

#[test]
fn literals_of_scripts_are_found_on_request() {
    let text = "<base href=/b/><a href='/link'>\"/text\"</a><script>let a = '/a.json'; x = \"</script>\
                <style>@import '/s.css'</style><script type=module>import '/m.js'; f('b.json')</script>";
    for cut in [1, 1000] {
        let (found, base) = literals(reading(html()), text, cut);
        assert_eq!(found, ["/a.json", "/m.js", "b.json"], "{cut}");
        assert_eq!(base, "https://www.example.org/b/");
        let (found, _) = literals(reading(script()), "let a = 1; f('/a.json')", cut);
        assert_eq!(found, ["/a.json"]);
        assert!(literals(html(), text, cut).0.is_empty());
        assert!(
            literals(reading(css()), "a { b: url('/i.png') }", cut)
                .0
                .is_empty()
        );
    }
    let mut scanner = reading(script());
    scanner.feed(b"let a = 1;", &mut Vec::new());
    assert!(!scanner.is_over(), "literals may follow");
}
