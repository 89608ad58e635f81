"""Vocabulary of the invented products: kinds, traits, options and sentences."""

from __future__ import annotations

# category > group > shelf | query | lowest and highest price | traits | options
KINDS = """
Home > Lighting > Table Lamps | table lamps | 18 90 | home | color size
Home > Lighting > Floor Lamps | floor lamps | 40 180 | home | color
Home > Furniture > Side Tables | side tables | 35 160 | wood | finish size
Home > Furniture > Bookcases | bookcases | 60 280 | wood | finish shelves
Home > Furniture > Bar Stools | bar stools | 45 190 | wood | finish seats
Home > Furniture > Desk Chairs | desk chairs | 70 320 | wood | color
Home > Textiles > Throw Blankets | throw blankets | 15 70 | cloth | color size
Home > Textiles > Curtains | curtains | 18 85 | cloth | color length
Home > Textiles > Cushion Covers | cushion covers | 8 32 | cloth | color size
Home > Textiles > Area Rugs | area rugs | 30 260 | cloth | color size
Home > Walls > Picture Frames | picture frames | 9 48 | wood | finish size
Home > Walls > Wall Clocks | wall clocks | 14 75 | home | color
Home > Storage > Storage Baskets | storage baskets | 10 45 | home | color size
Home > Garden > Planters | planters | 12 60 | home | color size
Home > Garden > String Lights | string lights | 9 40 | home | length
Kitchen > Cooking > Frying Pans | frying pans | 16 95 | pans | size
Kitchen > Cooking > Saucepans | saucepans | 18 90 | pans | size
Kitchen > Cooking > Baking Trays | baking trays | 9 38 | pans | pack
Kitchen > Table > Dinner Plates | dinner plates | 14 70 | table | color pack
Kitchen > Table > Coffee Mugs | coffee mugs | 7 30 | table | color pack
Kitchen > Table > Water Bottles | water bottles | 9 42 | table | color volume
Food > Drinks > Green Tea | green tea | 5 28 | food | flavor pack
Food > Drinks > Ground Coffee | ground coffee | 7 36 | food | roast pack
Food > Drinks > Fruit Juice | fruit juice | 4 24 | food | flavor pack
Food > Snacks > Granola Bars | granola bars | 5 29 | food | flavor pack
Food > Snacks > Trail Mix | trail mix | 6 34 | food | pack
Food > Snacks > Dark Chocolate | dark chocolate | 4 26 | food | flavor pack
Food > Snacks > Popcorn | popcorn | 4 22 | food | flavor pack
Food > Pantry > Olive Oil | olive oil | 8 46 | food | volume
Food > Pantry > Pasta Sauce | pasta sauce | 4 21 | food | flavor pack
Food > Pantry > Peanut Butter | peanut butter | 5 24 | food | pack
Beauty > Hair > Shampoo | shampoo | 6 38 | care | scent volume
Beauty > Hair > Hair Masks | hair masks | 8 42 | care | volume
Beauty > Hair > Hair Brushes | hair brushes | 6 30 | tools | color
Beauty > Skin > Face Creams | face creams | 9 70 | care | volume
Beauty > Skin > Body Lotion | body lotion | 7 36 | care | scent volume
Beauty > Skin > Lip Balm | lip balm | 3 16 | care | scent pack
Beauty > Skin > Sunscreen | sunscreen | 8 34 | care | volume
Beauty > Bath > Bath Salts | bath salts | 6 30 | care | scent
Beauty > Bath > Soap Bars | soap bars | 4 22 | care | scent pack
Beauty > Tools > Makeup Mirrors | makeup mirrors | 12 64 | tools | color
Beauty > Tools > Nail Files | nail files | 3 15 | tools | pack
Beauty > Tools > Travel Bottles | travel bottles | 6 24 | tools | color pack
Clothing > Men > Casual Shirts | casual shirts | 14 62 | wear | color fit
Clothing > Men > Cargo Pants | cargo pants | 20 78 | wear | color fit
Clothing > Men > Sweaters | sweaters | 22 90 | wear | color fit
Clothing > Women > Summer Dresses | summer dresses | 18 85 | wear | color fit
Clothing > Women > Blouses | blouses | 14 64 | wear | color fit
Clothing > Women > Leggings | leggings | 12 52 | wear | color fit
Clothing > Shoes > Running Shoes | running shoes | 30 130 | shoes | color shoe
Clothing > Shoes > Sandals | sandals | 15 70 | shoes | color shoe
Clothing > Shoes > Slippers | slippers | 12 45 | shoes | color shoe
Electronics > Sound > Headphones | headphones | 18 190 | sound | color
Electronics > Sound > Speakers | speakers | 20 220 | sound | color
Electronics > Cables > Charging Cables | charging cables | 5 26 | wires | length color
Electronics > Cables > Power Adapters | power adapters | 9 44 | wires | color
Electronics > Computers > Keyboards | keyboards | 15 140 | desk | color layout
Electronics > Computers > Wireless Mice | wireless mice | 10 75 | desk | color
Electronics > Computers > Memory Cards | memory cards | 8 90 | desk | storage
Electronics > Phones > Phone Cases | phone cases | 6 34 | cases | color model
Electronics > Phones > Screen Protectors | screen protectors | 5 22 | cases | model pack
"""

TRAITS = {
    "home": "easy assembly, space saving, rust proof, fade proof, hand painted, heavy base, soft glow, matte surface, "
    "living room, dining room, weather proof, dimmable light, wall mounted, non slip",
    "wood": "solid oak, reclaimed pine, walnut veneer, easy assembly, steel legs, white lacquer, water resistant, "
    "rounded edges, space saving, heavy duty, living room, home office, scratch proof, hidden drawer",
    "cloth": "machine washable, organic cotton, pure linen, double stitched, super soft, fade proof, hypoallergenic "
    "filling, hand woven, blackout lining, living room, non slip, quick drying, stain proof, brushed wool",
    "pans": "non stick, dishwasher safe, cast iron, stainless steel, induction ready, oven safe, even heating, "
    "riveted handle, copper core, scratch proof, heavy duty, glass lid",
    "table": "dishwasher safe, lead free, bone china, double walled, leak proof, microwave safe, hand glazed, "
    "bpa free, stainless steel, stackable shape, chip proof, wide mouth",
    "food": "gluten free, sugar free, low sodium, dairy free, non gmo, nut free, plant based, low carb, high protein, "
    "fair trade, certified organic, stone ground, no preservatives, soy free, whole grain, kosher certified",
    "care": "cruelty free, fragrance free, paraben free, sulfate free, tea tree, coconut oil, shea butter, sensitive "
    "skin, dry skin, vitamin c, long lasting, hyaluronic acid, fast absorbing, dermatologist tested, argan oil",
    "tools": "easy carry, travel size, high quality, double sided, rose handle, anti static, non slip, easy clean, "
    "stainless steel, leak proof, bpa free, natural bristles, battery powered",
    "wear": "machine washable, slim fit, relaxed fit, long sleeve, short sleeve, elastic waist, tumble dry, "
    "pure cotton, quick drying, button closure, zipper closure, everyday wear, deep pockets, stretch fabric, "
    "tummy control, hand wash",
    "shoes": "non slip, memory foam, arch support, ankle strap, rubber sole, faux leather, water resistant, wide toe, "
    "slip on, lace up, quick drying, soft lining, light weight, high traction",
    "sound": "noise cancelling, water resistant, stereo sound, fast charging, long battery, hands free, deep bass, "
    "wireless bluetooth, light weight, carrying case, volume control, foldable frame",
    "wires": "fast charging, gold plated, braided nylon, tangle free, heavy duty, high speed, overload protection, "
    "travel size, right angle, aluminum shell, plug play",
    "desk": "plug play, high speed, long battery, silent keys, ergonomic grip, spill proof, backlit keys, "
    "compact size, rechargeable battery, shock proof, wireless bluetooth, high performance",
    "cases": "shock proof, tempered glass, wireless charging, raised edges, scratch proof, ultra thin, "
    "anti fingerprint, bubble free, card holder, non slip, soft silicone, case friendly",
}

OPTIONS = {
    "color": "black, white, navy blue, light grey, forest green, rose gold, brick red, mustard yellow, dusty pink, "
    "dark brown, teal, lavender, ivory, charcoal, azure, olive, burgundy, silver, coral, beige",
    "finish": "natural oak, dark walnut, white, black, weathered grey, cherry, honey pine, espresso",
    "size": "small, medium, large, oversize",
    "fit": "xs, s, m, l, xl, xxl",
    "shoe": "36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46",
    "length": "30 cm, 60 cm, 90 cm, 150 cm, 200 cm, 400 cm",
    "shelves": "three shelves, four shelves, five shelves, six shelves",
    "seats": "single seat, pair, set of four",
    "pack": "single, pair, set of three, set of six, dozen",
    "volume": "60 ml, 120 ml, 250 ml, 350 ml, 500 ml, one liter",
    "flavor": "original, lemon, honey, sea salt, wild berry, mint, cinnamon, ginger, vanilla, "
    "mango, black cherry, hazelnut",
    "roast": "light roast, medium roast, dark roast, espresso roast, decaf",
    "scent": "unscented, lavender, thyme, sweet orange, sandalwood, eucalyptus, rose, green apple, cedar",
    "layout": "full size, without number pad, sixty percent",
    "storage": "32 gb, 64 gb, 128 gb, 256 gb, 512 gb",
    "model": "aster, birch, cobalt, delta, ember, flint, garnet",
}

# a brand is a pair of these
SYLLABLES = (
    "Bel Cor Dana Elo Fen Garo Hale Ister Juno Kesta Lumo Mira Norda Oaken Pella Quill Rova Silva Tamar Umbra Vento "
    "Wren Yarro Zella",
    "bury crest dale field gate haven kind line mark nest point ridge stone tide way wick works yard",
)

# sentences around the traits; {thing} is the query
SAYS = (
    "The {brand} {thing} are made for people who use them every day.",
    "We check each of our {thing} by hand before it leaves the house.",
    "A good gift, packed in paper without plastic.",
    "Write to us if anything is wrong, and we send another one.",
    "The {brand} family works on {thing} since its first day.",
)
LINES = (
    "{trait}: what our customers name first",
    "{trait}, as it should be",
    "Tested for a year: {trait}",
    "New in this line: {trait}",
    "{trait} without a higher price",
)
WANTS = (
    "I am looking for {thing} that are {traits}",
    "Find me {thing} with {traits}",
    "I need {thing}, {traits}",
    "Please buy {thing} for me, {traits}",
)
