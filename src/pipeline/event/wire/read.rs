//! Deserializers of the three kinds of field: they accept every value, and keep its type.

use super::{List, Object, Text};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A visitor's methods for the values of other types.
macro_rules! otherwise {
    ($kind:ident: scalar) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($kind::Missing)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($kind::Other("a boolean"))
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($kind::Other("a number"))
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($kind::Other("a number"))
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($kind::Other("a number"))
        }
    };
    ($kind:ident: string) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($kind::Other("a string"))
        }
    };
    ($kind:ident: list) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok($kind::Other("a list"))
        }
    };
    ($kind:ident: object) => {
        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($kind::Other("an object"))
        }
    };
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<'a>(PhantomData<&'a str>);
        impl<'de: 'a, 'a> Visitor<'de> for Reader<'a> {
            type Value = Text<'a>;
            otherwise!(Text: scalar);
            otherwise!(Text: list);
            otherwise!(Text: object);

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text::Is(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text::Is(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Object<T>;
            otherwise!(Object: scalar);
            otherwise!(Object: string);
            otherwise!(Object: list);

            fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(object)).map(Object::Is)
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = List<T>;
            otherwise!(List: scalar);
            otherwise!(List: string);
            otherwise!(List: object);

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(List::Is(items))
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}
