//! Enumerations of strings that keep what they do not know.

/// Declares an enumeration of strings, for fields of [`table!`](crate::table!).
///
/// It gets a variant `Unknown` that keeps any other string, since a newer server may
/// allow more: reading does not fail, and what is written back is what was read.
///
/// ```
/// ovsdb::enumeration! {
///     /// How packets are carried.
///     pub enum Protocol { Tcp = "tcp", Udp = "udp" }
/// }
/// assert_eq!(Protocol::from("udp"), Protocol::Udp);
/// assert_eq!(Protocol::from("quic").as_str(), "quic");
/// assert_eq!(Protocol::KNOWN, ["tcp", "udp"]);
/// ```
#[macro_export]
macro_rules! enumeration {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $( $(#[$variant_meta])* #[doc = concat!("`", $text, "`")] $variant, )*
            /// Any other string.
            Unknown(::std::sync::Arc<str>),
        }

        #[allow(dead_code)]
        impl $name {
            /// The strings that have variants of their own.
            $vis const KNOWN: &'static [&'static str] = &[$($text),*];

            /// The string.
            $vis fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )*
                    Self::Unknown(text) => text,
                }
            }
        }

        impl ::std::convert::From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $text => Self::$variant, )*
                    other => Self::Unknown(other.into()),
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::typed::FromAtom for $name {
            fn from_atom(atom: &$crate::Atom) -> ::std::option::Option<Self> {
                atom.as_str().map(Self::from)
            }
        }

        impl $crate::typed::ToAtom for $name {
            fn to_atom(&self) -> $crate::Atom {
                $crate::Atom::from(self.as_str())
            }
        }

        impl $crate::typed::FromColumn for $name {
            fn from_column(
                value: ::std::option::Option<&$crate::Value>,
            ) -> ::std::result::Result<Self, ::std::string::String> {
                $crate::typed::scalar(value)
            }
        }

        impl $crate::typed::ToColumn for $name {
            fn to_column(&self) -> ::std::option::Option<$crate::Value> {
                ::std::option::Option::Some($crate::Value::Atom($crate::typed::ToAtom::to_atom(self)))
            }
        }
    };
}
